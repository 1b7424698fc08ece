"""Which node of a cluster serves which shard, as the cluster tells it: asked in a thread, never by a request."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterError, MovedError, ReadOnlyError, RedisError, ResponseError

from ....exceptions import EngineUnavailable
from ..connections.clients import Address, ClientFactory

#: Seconds that a node may take to say what it knows, and between two rounds of asking.
REFRESH_TIMEOUT: Final = 1.0
REFRESH_PAUSE: Final = 0.1

_NONE: Final[list[Address | None]] = []
_MAX_TIMEOUTS: Final = {"socket_timeout": REFRESH_TIMEOUT, "socket_connect_timeout": REFRESH_TIMEOUT}


class Redirection(NamedTuple):
    """Where a call is to be sent instead. asking: with the word that it may be run there before the slot has moved."""

    address: Address
    asking: bool = False


class Topology:
    """What this process knows of a cluster.

    namespace, shards: they give the hash tags, and by them the slots. Each shard holds the number of shards, so that
    two processes that disagree about it cannot count under one namespace: the second is refused.
    """

    def __init__(self, client_factory: ClientFactory, namespace: str, shards: int) -> None:
        self._client_factory = client_factory
        self._namespace, self._shards = namespace, shards
        self._hash_slots = [key_slot(f"{namespace}:{shard}".encode()) for shard in range(shards)]
        self._addresses: list[Address | None] = []  # of each shard's node; empty = nothing is known
        self._problem = ""  # why nothing is known
        self._known = Event()
        self._thread: Thread | None = None
        self._not_before = 0.0

    def address(self, shard: int, wait: float) -> Address:
        """The address of a shard's node. wait: seconds, which only the first calls of a process may need.

        Raises EngineUnavailable where it is not known.
        """
        if not self._addresses:
            self.refresh_soon()
            self._known.wait(wait)
        return self.known_address(shard)

    def known_address(self, shard: int) -> Address:
        """The same without waiting."""
        address = self.node_of(shard)
        if address is None:
            self.refresh_soon()
            unknown = (
                "No node serves this shard." if self.is_known else "The cluster is being asked which node serves it."
            )
            raise EngineUnavailable(self._problem or unknown)
        return address

    def node_of(self, shard: int) -> Address | None:
        """The address of a shard's node if it is known."""
        addresses = self._addresses
        return addresses[shard] if addresses else None

    def shards_at(self, address: Address) -> list[int]:
        """The shards whose node is at this address."""
        return [shard for shard, each in enumerate(self._addresses) if each == address]

    @property
    def is_known(self) -> bool:
        """Whether the cluster has been asked, with whatever success."""
        return self._known.is_set()

    @property
    def addresses_in_use(self) -> set[Address]:
        """The addresses of all nodes that serve a shard."""
        return set(filter(None, self._addresses))

    def redirection(self, shard: int, address: Address, error: EngineUnavailable) -> Redirection | None:
        """What becomes of a call that the node at an address did not answer: where to send it, if anywhere."""
        cause = error.__cause__
        if isinstance(cause, AskError):  # or MovedError, which is one
            target = self._remapped((str(cause.host) or address[0], cause.port))
            if not isinstance(cause, MovedError):
                return Redirection(target, asking=True)
            if addresses := self._addresses:
                addresses[shard] = target
            self.refresh_soon()
            return Redirection(target)
        if not isinstance(cause, ResponseError) or isinstance(cause, ClusterError | ReadOnlyError):
            self.refresh_soon(address)
        return None

    def refresh_soon(self, address: Address | None = None) -> None:
        """Ask the cluster again, unless that is being done or was just done. address: of a node that has failed."""
        if (self._thread is not None and self._thread.is_alive()) or time.monotonic() < self._not_before:
            return
        # Two of them do no harm, and a lock might be held for ever in a process that was forked meanwhile.
        thread = Thread(target=self._refresh, args=(address,), name="django_ratelimiter-topology", daemon=True)
        self._thread = thread
        with suppress(RuntimeError):  # the process is ending
            thread.start()  # ours: `_thread` may be another caller's by now, and none is to be started twice

    def refresh_now(self, failed: Address | None = None) -> None:
        """Ask the cluster again, whenever that was last done. failed: as for `refresh_soon`.

        Sees, too, that all that can be reached was spread over as many shards.
        """
        self._not_before = 0.0
        self.refresh_soon(failed)

    def wait_until_known(self, deadline_at: float) -> None:
        """Wait until the cluster has been asked, at most until then, in monotonic seconds; off the path of decisions.

        Raises EngineUnavailable if it was spread over another number of shards, or if nobody answers. Where time is
        up, what was known before has to do.
        """
        thread = self._thread
        assert thread
        with suppress(RuntimeError):  # it has not begun, since the process is ending
            thread.join(max(deadline_at - time.monotonic(), 0.0))
        if self._problem or not self._addresses:
            raise EngineUnavailable(self._problem or "The cluster is being asked which node serves which slots.")

    def _refresh(self, failed: Address | None) -> None:
        """Learn from the first node that tells. failed: a node to be asked last."""
        known = set(filter(None, self._addresses)).union(self._client_factory.addresses)
        order = sorted(random.sample(sorted(known), len(known)), key=lambda address: address == failed)
        try:
            self._load(order)
            self._problem = ""
        except EngineUnavailable as error:
            self._problem = str(error)
        finally:
            self._not_before = time.monotonic() + REFRESH_PAUSE
            self._known.set()

    def _load(self, order: Iterable[Address]) -> None:
        problem, best = "", _NONE
        for address in order:
            try:
                with self._client_factory.node(address, **self._timeouts) as client:
                    masters = _masters(client.execute_command("CLUSTER SLOTS"), address[0])
            except (RedisError, OSError, LookupError, TypeError, ValueError) as error:  # or it said what is none
                problem = str(error)
                continue
            found = [masters.get(hash_slot) for hash_slot in self._hash_slots]
            best = max(best, found, key=lambda each: len(each) - each.count(None))
            if None not in found:
                break
        if not any(best):
            raise EngineUnavailable(f"No node of the cluster can say which node serves which slots. {problem}")
        addresses = [address and self._remapped(address) for address in best]
        if self._addresses:  # and they were agreed on: nobody has to wait until they are once more
            self._addresses = addresses
        self._check_shard_counts(addresses)
        self._addresses = addresses

    def _check_shard_counts(self, addresses: Sequence[Address | None]) -> None:
        for address in set(filter(None, addresses)):
            shards = [shard for shard, served_by in enumerate(addresses) if served_by == address]
            try:
                spread = set(self._shard_counts_at(address, shards))
            except (RedisError, OSError, ValueError):
                continue  # whoever comes to it first will tell the others
            if other := spread - {self._shards}:
                raise self.shard_count_error(other.pop())

    def _shard_counts_at(self, address: Address, shards: Sequence[int]) -> list[int]:
        """Over how many shards it was spread, as each of a node's shards holds it."""
        with (
            self._client_factory.node(address, **self._timeouts) as client,
            client.pipeline(transaction=False) as pipeline,
        ):
            for shard in shards:
                for command in self.shard_count_commands(shard):
                    pipeline.execute_command(*command)
            replies = pipeline.execute(raise_on_error=False)[1::2]
        return [int(reply) for reply in replies if isinstance(reply, bytes | str)]

    def shard_count_commands(self, shard: int) -> tuple[tuple[str, ...], ...]:
        """The commands that make a shard hold the number of shards, unless it holds one, and tell which."""
        name = f"{{{self._namespace}:{shard}}}:shards"
        return ("SET", name, str(self._shards), "NX"), ("GET", name)

    def shard_count_error(self, other: int) -> EngineUnavailable:
        """What to raise where a shard holds another number; until all agree, nobody is asked any more."""
        self._addresses = []
        self._problem = (
            f"SHARDS is {self._shards}, but what namespace {self._namespace!r} holds in the cluster is spread over "
            f"{other}; another number of shards needs another namespace."
        )
        return EngineUnavailable(self._problem)

    @property
    def _timeouts(self) -> dict[str, float]:
        return {name: min(self._client_factory.options.get(name) or most, most) for name, most in _MAX_TIMEOUTS.items()}

    def _remapped(self, address: Address) -> Address:
        return self._client_factory.remap(address) if self._client_factory.remap else address


def _masters(ranges: Iterable[Sequence[Any]], asked: str) -> dict[int, Address]:
    """The masters of all slots by the reply to CLUSTER SLOTS. asked: the host that has given it, who may call it ''."""
    masters = {}
    for first, last, (host, port, *_), *_ in ranges:
        name = host.decode() if isinstance(host, bytes) else host
        address = (name if name and name != "?" else asked, int(port))
        masters.update(dict.fromkeys(range(int(first), int(last) + 1), address))
    return masters
