"""RedisEngine: the charges of a call packed into one script call, its reply read into verdicts.

The path of a decision keeps connections of its own and speaks to them in packed commands: the client's own way
costs more than the script (benchmarks/), and it repeats a command whose reply was lost, which would count twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from ...exceptions import EngineUnavailable, StaleRules
from .. import usage
from ..base import Charge, UsageCount, Verdict, Version, leases
from ..plan import ATTEMPTS, OUT_OF_TIME, Mode, Planner, deletion, mark_refunded, read, receipts_of, settle
from ..scripts import TAKE_USAGE
from .async_links import AsyncLinks
from .clients import asynchronous
from .links import Links
from .wires import packed


class RedisEngine(Planner):
    """The engine on one Redis, or on what Sentinel names as its master.

    client: a redis-py client; the engine's own connections are made as its pool makes them.
    namespace: what all keys begin with. deadline: seconds that a decision waits for Redis at most, and a server that
    keeps failing is not asked until it answers again; `None` = the client's timeouts hold, and each call tries anew.
    Every method raises EngineUnavailable where Redis gives no answer.
    """

    def __init__(self, client: Redis, namespace: str = "rl", *, deadline: float | None = None) -> None:
        super().__init__(namespace)
        self._client, self._deadline = client, deadline
        self._links = Links(client, deadline, _probe(self))

    def for_event_loops(self) -> AsyncRedisEngine | None:
        """The same engine for event loops; `None` where its client cannot be had for them."""
        client = asynchronous(self._client)
        return AsyncRedisEngine(client, self.namespace, deadline=self._deadline) if client else None

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        refused: bool = False,
        counts: usage.Held | None = None,
    ) -> list[Verdict]:
        """Decide and spend, all or nothing. Raises StaleRules if `version` is not the one in force.

        refused: the call is refused already: it is dealt with as if one more charge had refused it.
        counts: usage that this process has held; it is added once, however often it comes under the same id.
        """
        charges, receipts = list(charges), receipts_of(refund_if_denied)
        mode = Mode.REFUSED if refused else Mode.CHECK
        reply = self._call(mode, charges, receipts, version, now_us, counts)
        verdicts = read(reply, charges, spending=True, refused=refused)
        settle(receipts, verdicts, refused=refused)
        return verdicts

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now; spends and counts nothing."""
        charges = list(charges)
        return read(self._call(Mode.PEEK, charges, (), None, now_us), charges, spending=False)

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent. A verdict is refunded once; what is past is let go."""
        receipts = receipts_of(verdicts)
        if receipts:
            self._call(Mode.REFUND, (), receipts, None, None)
            mark_refunded(receipts)

    def release(self, verdicts: Iterable[Verdict]) -> None:
        """End the leases of these verdicts; those of other algorithms are left alone."""
        self.refund(leases(verdicts))

    def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys: their next request finds the full quota."""
        names = [self._name(charge) for charge in charges]
        if names:
            self._ask(lambda: self._client.delete(*names))

    def publish(self, version: int | Version) -> None:
        """Put a version in force, unless a later one is."""
        with suppress(StaleRules):  # a later version is in force already
            self._call(Mode.PUBLISH, (), (), version, None)

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed and name all batches that wait, the oldest first."""
        now = str(-1 if now_us is None else now_us)
        batches = self._ask(lambda: self._client.eval(TAKE_USAGE, 1, self._version_key(0), now, uuid4().hex))
        return usage.in_order(_text(batch) for batch in batches)

    def read_usage(self, batch: str) -> list[UsageCount]:
        """The counts of one batch; empty once it was dropped or expired."""
        found = self._ask(lambda: self._client.hgetall(f"{self._prefix(0)}batch:{batch}"))
        fields = {_text(field): count for field, count in found.items()}
        fields.pop(usage.FILLER, None)
        return usage.counts_of(usage.minute_of(batch), {field: int(count) for field, count in fields.items()})

    def drop_usage(self, batch: str) -> None:
        """Forget a batch that has been collected."""
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(f"{self._prefix(0)}batch:{batch}")
            pipeline.srem(f"{self._prefix(0)}batches", batch)
            self._ask(pipeline.execute)

    def _call(
        self,
        mode: Mode,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        counts: usage.Held | None = None,
    ) -> list[int]:
        """One call of check.lua for these charges and receipts."""
        times: Sequence[int] | None = None
        until: float | None = None
        began = monotonic()
        for _ in range(ATTEMPTS):
            call = self._packed(mode, charges, receipts, version, now_us, times, counts=counts)
            reply: list[int] = self._links.ask(call, until)
            if reply[0] >= 0:
                return reply
            times = self._times(reply, now_us)
            until = None if self._deadline is None else began + self._deadline
        raise EngineUnavailable(OUT_OF_TIME)

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Run a command off the path of decisions, through the client; it may be repeated without harm."""
        try:
            return command()
        except (RedisError, OSError) as error:
            raise EngineUnavailable(f"Redis did not do it: {error}") from error


class AsyncRedisEngine(Planner):
    """RedisEngine for event loops: the same plans and verdicts, and each method to be awaited.

    client: of redis.asyncio; the engine's own connections are made as its pool makes them. most_connections: calls at
    work at once on one event loop; more wait for their turn. deadline: as for RedisEngine; without one, the client's
    `socket_timeout` stands in for it.
    """

    def __init__(
        self, client: AsyncRedis, namespace: str = "rl", *, most_connections: int = 64, deadline: float | None = None
    ) -> None:
        super().__init__(namespace)
        self._deadline = deadline
        self._links = AsyncLinks(client, most_connections, deadline, _probe(self))

    async def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
        refused: bool = False,
        counts: usage.Held | None = None,
    ) -> list[Verdict]:
        """Decide and spend, all or nothing. Raises StaleRules if `version` is not the one in force.

        refused: the call is refused already: it is dealt with as if one more charge had refused it.
        counts: usage that this process has held; it is added once, however often it comes under the same id.
        """
        charges, receipts = list(charges), receipts_of(refund_if_denied)
        mode = Mode.REFUSED if refused else Mode.CHECK
        reply = await self._call(mode, charges, receipts, version, now_us, counts)
        verdicts = read(reply, charges, spending=True, refused=refused)
        settle(receipts, verdicts, refused=refused)
        return verdicts

    async def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now; spends and counts nothing."""
        charges = list(charges)
        return read(await self._call(Mode.PEEK, charges, (), None, now_us), charges, spending=False)

    async def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent. A verdict is refunded once; what is past is let go."""
        receipts = receipts_of(verdicts)
        if receipts:
            await self._call(Mode.REFUND, (), receipts, None, None)
            mark_refunded(receipts)

    async def release(self, verdicts: Iterable[Verdict]) -> None:
        """End the leases of these verdicts; those of other algorithms are left alone."""
        await self.refund(leases(verdicts))

    async def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these keys: their next request finds the full quota."""
        names = [self._name(charge) for charge in charges]
        if names:
            await self._links.ask(deletion(names))  # the client's own connections know one event loop only

    async def publish(self, version: int | Version) -> None:
        """Put a version in force, unless a later one is."""
        with suppress(StaleRules):  # a later version is in force already
            await self._call(Mode.PUBLISH, (), (), version, None)

    async def aclose(self) -> None:
        """Close this event loop's idle connections; the client is its owner's to close."""
        await self._links.close()

    async def _call(
        self,
        mode: Mode,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
        counts: usage.Held | None = None,
    ) -> list[int]:
        """One call of check.lua for these charges and receipts."""
        times: Sequence[int] | None = None
        until: float | None = None
        began = monotonic()
        for _ in range(ATTEMPTS):
            call = self._packed(mode, charges, receipts, version, now_us, times, counts=counts)
            reply: list[int] = await self._links.ask(call, until)
            if reply[0] >= 0:
                return reply
            times = self._times(reply, now_us)
            until = None if self._deadline is None else began + self._deadline
        raise EngineUnavailable(OUT_OF_TIME)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _probe(planner: Planner) -> bytes:
    """A write that only a master takes; it leaves nothing for longer than a second."""
    return packed("SET", f"{{{planner.namespace}:0}}:probe", "1", "PX", "1000")
