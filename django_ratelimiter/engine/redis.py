"""RedisEngine: the charges of a call packed into one script call, its reply read into verdicts.

The path of a decision keeps connections of its own and speaks to them in packed commands: the client's own way
costs more than the script (benchmarks/), and it repeats a command whose reply was lost, which would count twice.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import pack
from typing import Any, Final
from uuid import uuid4
from weakref import finalize

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionInterface
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry

from ..exceptions import EngineUnavailable, StaleRules
from . import usage
from .base import Charge, UsageCount, Verdict, Version, as_version, leases
from .limits import EXACT
from .scripts import CHECK, CHECK_SHA, TAKE_USAGE

CHECK_MODE, PEEK, REFUND, PUBLISH = range(4)

#: How often a call is sent with other calendar windows before the clocks are held to be out of their minds.
ATTEMPTS: Final = 4
_FLAGS: Final = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}
_COST_ONE: Final = {flags: pack("<dd", 1, flags) for flags in _FLAGS.values()}


class RedisEngine:
    """The engine on one Redis, or on what Sentinel names as its master.

    client: a redis-py client; its pool's settings (timeouts above all) hold for the engine's connections too.
    namespace: what all keys begin with.
    Every method raises EngineUnavailable where Redis gives no answer.
    """

    def __init__(self, client: Redis, namespace: str = "rl") -> None:
        if not namespace or set(namespace) & set("{}"):
            raise ValueError(f"namespace: must be some text without braces, not {namespace!r}.")
        self._client = client
        self._links = _Links(client)
        self._prefix = f"{{{namespace}:0}}:"
        self._version_key = f"{self._prefix}version"
        self._heads: dict[int, bytes] = {}
        self._ahead = 0  # what the clock of Redis is ahead of ours, as far as calendars have shown

    def check(
        self,
        charges: Iterable[Charge],
        *,
        version: int | Version | None = None,
        refund_if_denied: Iterable[Verdict] = (),
        now_us: int | None = None,
    ) -> list[Verdict]:
        """Decide and spend, all or nothing. Raises StaleRules if `version` is not the one in force."""
        charges = list(charges)
        receipts = _receipts(refund_if_denied)
        reply = self._call(CHECK_MODE, charges, receipts, version, now_us)
        verdicts = _read(reply, charges, spending=True)
        if receipts and any(not verdict.allowed and verdict.charge.gating for verdict in verdicts):
            _mark_refunded(receipts)
        return verdicts

    def peek(self, charges: Iterable[Charge], now_us: int | None = None) -> list[Verdict]:
        """The verdicts that `check` would give now; spends and counts nothing."""
        charges = list(charges)
        return _read(self._call(PEEK, charges, (), None, now_us), charges, spending=False)

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent. A verdict is refunded once; what is past is let go."""
        receipts = _receipts(verdicts)
        if receipts:
            self._call(REFUND, (), receipts, None, None)
            _mark_refunded(receipts)

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
            self._call(PUBLISH, (), (), version, None)

    def take_usage(self, *, now_us: int | None = None) -> list[str]:
        """Close the minutes that have passed and name all batches that wait, the oldest first."""
        now = str(-1 if now_us is None else now_us)
        batches = self._ask(lambda: self._client.eval(TAKE_USAGE, 1, self._version_key, now, uuid4().hex))
        return usage.in_order(_text(batch) for batch in batches)

    def read_usage(self, batch: str) -> list[UsageCount]:
        """The counts of one batch; empty once it was dropped or expired."""
        found = self._ask(lambda: self._client.hgetall(f"{self._prefix}batch:{batch}"))
        fields = {_text(field): count for field, count in found.items()}
        fields.pop(usage.FILLER, None)
        return usage.counts_of(usage.minute_of(batch), {field: int(count) for field, count in fields.items()})

    def drop_usage(self, batch: str) -> None:
        """Forget a batch that has been collected."""
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(f"{self._prefix}batch:{batch}")
            pipeline.srem(f"{self._prefix}batches", batch)
            self._ask(pipeline.execute)

    def _name(self, charge: Charge) -> bytes:
        return f"{self._prefix}{charge.key}{charge.limit.tag}".encode()

    def _call(
        self,
        mode: int,
        charges: Sequence[Charge],
        receipts: Sequence[Verdict],
        version: int | Version | None,
        now_us: int | None,
    ) -> list[int]:
        """The plan: one packed EVALSHA of check.lua for these charges and receipts."""
        names = [self._name(charge) for charge in charges]
        if len(names) > 1 and len(set(names)) != len(names):
            raise ValueError("charges: the same key and limit stand twice in one call; add up their costs instead.")
        labels = usage.labels_of(charges).encode() if mode == CHECK_MODE else b""
        compared = b"" if version is None else b"%d:%d" % as_version(version).order
        header = pack("<dddd", -1 if now_us is None else now_us, len(charges), len(receipts), mode)
        given_back = [self._receipt(receipt) for receipt in receipts]
        names += [self._name(receipt.charge) for receipt in receipts]
        times: list[int] | None = None
        for _ in range(ATTEMPTS):
            records = self._records(charges, now_us, times)
            parts = [self._head(len(names))]
            for word in (*names, compared, labels, b"".join((header, *records, *given_back))):
                parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
            reply = self._links.ask(b"".join(parts))
            if reply[0] == -1:
                raise StaleRules(reply[2], reply[1]) if len(reply) == 3 else StaleRules(None)
            if reply[0] != -2:
                return reply
            times = reply[2:]
            if now_us is None:
                self._ahead = reply[1] - _now()
        raise EngineUnavailable(f"The time of Redis left its calendar windows {ATTEMPTS} times during one call.")

    def _records(self, charges: Sequence[Charge], now_us: int | None, times: Sequence[int] | None) -> list[bytes]:
        """The charges as the script reads them. times: by the clock of each; `None` = not known yet."""
        records = []
        for index, charge in enumerate(charges):
            limit = charge.limit
            packed = limit.packed
            if limit.calendar is not None:
                now = _now() + self._ahead if now_us is None else now_us
                packed = limit.packed_with(limit.terms_at(times[index] if times else now))
            elif charge.max_delay is not None and limit.holds:
                packed = limit.packed_with(limit.terms_at(0, charge.max_delay))
            records.append(packed + self._cost(charge))
        return records

    @staticmethod
    def _receipt(verdict: Verdict) -> bytes:
        limit, at = verdict.charge.limit, verdict.spent_at_us
        return limit.packed_with(limit.terms_at(at)) + pack("<dd", verdict.spent, at)

    def _head(self, counters: int) -> bytes:
        """What a packed call with so many counters begins with: up to the version key."""
        head = self._heads.get(counters)
        if head is None:
            keys, key = b"%d" % (counters + 1), self._version_key.encode()
            words = (b"EVALSHA", CHECK_SHA, keys, key)
            head = b"*%d\r\n" % (counters + 7) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            self._heads[counters] = head
        return head

    @staticmethod
    def _cost(charge: Charge) -> bytes:
        cost, flags = charge.cost, _FLAGS[charge.gating, charge.count_refusals]
        if type(cost) is not int or cost < 0:
            raise ValueError(f"cost: must be a whole number from 0, not {cost!r}.")
        return _COST_ONE[flags] if cost == 1 else pack("<dd", min(cost, EXACT), flags)

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Run a command off the path of decisions, through the client; it may be repeated without harm."""
        try:
            return command()
        except (RedisError, OSError) as error:
            raise EngineUnavailable(f"Redis did not do it: {error}") from error


def _read(reply: list[int], charges: Sequence[Charge], *, spending: bool) -> list[Verdict]:
    """The reply of check.lua as verdicts, in the order of the charges."""
    now = reply[0]
    waits = reply[2::4]
    denied = any((wait > 0 or wait == -1) and charge.gating for wait, charge in zip(waits, charges, strict=True))
    verdicts = []
    for charge, remaining, wait, reset, lead in zip(charges, reply[1::4], waits, reply[3::4], reply[4::4], strict=True):
        limit, allowed, delay = charge.limit, wait == 0, 0.0
        if wait < -1:
            allowed, wait, delay = True, 0, (-1 - wait) / 1_000_000
        spent = charge.cost if spending and allowed and not denied else 0
        left = remaining if spending else remaining - charge.cost
        soft = allowed and not denied and left < limit.terms.soft_floor
        if limit.holds and charge.max_delay is not None and reset - lead > limit.terms_at(0, charge.max_delay).extra:
            remaining = 0
        retry_after = None if wait < 0 else wait / 1_000_000
        verdicts.append(
            Verdict(allowed, remaining, retry_after, reset / 1_000_000, delay, soft, now, charge, spent, now + lead)
        )
    return verdicts


def _now() -> int:
    """This process's time in microseconds since the Unix epoch."""
    return time.time_ns() // 1_000


def _receipts(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that spent something, each once."""
    return list({id(verdict): verdict for verdict in verdicts if verdict.spent}.values())


def _mark_refunded(receipts: Iterable[Verdict]) -> None:
    for receipt in receipts:
        receipt.mark_refunded()


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


class _Links:
    """Connections made as the client's pool makes them and kept between calls, one per thread at work.

    They stand beside the pool, not in it: the pool's `max_connections` is a promise to its other users.
    """

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._idle: deque[ConnectionInterface] = deque()
        self._pid = os.getpid()
        finalize(self, _hang_up, self._idle)

    def ask(self, packed: bytes) -> list[int]:
        """Send one packed call and read its reply. A call whose reply was lost is not sent again."""
        try:
            link = self._take()
            try:
                try:
                    link.send_packed_command([packed], check_health=False)
                    reply: list[int] = link.read_response()
                except NoScriptError:  # nothing was run: a restart, a flush of scripts, a promoted replica
                    link.send_command("SCRIPT LOAD", CHECK)
                    link.read_response()
                    link.send_packed_command([packed], check_health=False)
                    reply = link.read_response()
            except BaseException as error:
                # An error that Redis answers with leaves the connection sound; but a replica may be our old master.
                if isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError):
                    self._idle.append(link)
                else:
                    link.disconnect()
                raise
            self._idle.append(link)
            return reply
        except (RedisError, OSError) as error:
            raise EngineUnavailable(f"Redis gave no decision: {error}") from error

    def _take(self) -> ConnectionInterface:
        """An idle connection that is alive, or a new one."""
        if self._pid != os.getpid():  # after a fork the sockets belong to the parent
            _hang_up(self._idle)
            self._pid = os.getpid()
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._new()
            try:
                if not link.can_read():
                    return link
            except (RedisError, OSError):
                pass
            link.disconnect()  # closed by the server, or with something unread on it

    def _new(self) -> ConnectionInterface:
        link: ConnectionInterface = self._pool.connection_class(**self._pool.connection_kwargs)
        link.retry = Retry(NoBackoff(), 0)  # type: ignore[attr-defined]  # the deadline of a decision allows no second try
        link.connect()
        return link


def _hang_up(idle: deque[ConnectionInterface]) -> None:
    """Close connections; where they are a parent process's, only our hold on them."""
    with suppress(IndexError):
        while True:
            idle.pop().disconnect()
