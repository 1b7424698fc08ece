"""Which node of a cluster serves which shard. It is read from the cluster in a thread, never by a request."""

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

#: Seconds for a node to answer, and between two refreshes.
REFRESH_TIMEOUT: Final = 1.0
REFRESH_PAUSE: Final = 0.1

_MAX_TIMEOUTS: Final = {"socket_timeout": REFRESH_TIMEOUT, "socket_connect_timeout": REFRESH_TIMEOUT}


class Redirection(NamedTuple):
    """Another node for a call. asking: send ASKING first, because the slot has not moved yet."""

    address: Address
    asking: bool = False


class Topology:
    """The known topology of a cluster.

    namespace, shards: determine the hash tags, and so the slots. Each shard stores the number of shards, so that
    two processes with different numbers cannot use one namespace: the second process gets an error.
    """

    def __init__(self, client_factory: ClientFactory, namespace: str, shards: int) -> None:
        self._client_factory = client_factory
        self._namespace, self._shards = namespace, shards
        self._hash_slots = [key_slot(f"{namespace}:{shard}".encode()) for shard in range(shards)]
        self._addresses: list[Address | None] = []  # of each shard's node; empty = not known yet
        self._problem = ""  # why it is not known
        self._known = Event()
        self._thread: Thread | None = None
        self._not_before = 0.0

    def address(self, shard: int, wait: float) -> Address:
        """Return the address of a shard's node. wait: maximum seconds; only the first calls of a process may wait.

        Raises EngineUnavailable if it is not known.
        """
        if not self._addresses:
            self.refresh_soon()
            self._known.wait(wait)
        return self.known_address(shard)

    def known_address(self, shard: int) -> Address:
        """Return the address of a shard's node without waiting."""
        address = self.node_of(shard)
        if address is None:
            self.refresh_soon()
            unknown = (
                "No node serves this shard." if self.is_known else "The cluster is being asked which node serves it."
            )
            raise EngineUnavailable(self._problem or unknown)
        return address

    def node_of(self, shard: int) -> Address | None:
        """Return the address of a shard's node if it is known."""
        addresses = self._addresses
        return addresses[shard] if addresses else None

    def shards_at(self, address: Address) -> list[int]:
        """Return the shards whose node is at this address."""
        return [shard for shard, each in enumerate(self._addresses) if each == address]

    @property
    def is_known(self) -> bool:
        """True if the cluster was asked, successfully or not."""
        return self._known.is_set()

    @property
    def addresses_in_use(self) -> set[Address]:
        """Return the addresses of all nodes that serve a shard."""
        return set(filter(None, self._addresses))

    def redirection(self, shard: int, address: Address, error: EngineUnavailable) -> Redirection | None:
        """Return where to send a call that the node at this address did not answer; `None` = nowhere."""
        cause = error.__cause__
        if isinstance(cause, AskError):  # MovedError is a subclass
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
        """Refresh in a thread, unless that is in progress or was just done. address: of a node that has failed."""
        if (self._thread is not None and self._thread.is_alive()) or time.monotonic() < self._not_before:
            return
        # Two threads do no harm, and a lock might stay locked for ever in a process that was forked meanwhile.
        thread = Thread(target=self._refresh, args=(address,), name="django_ratelimiter-topology", daemon=True)
        self._thread = thread
        with suppress(RuntimeError):  # the process is ending
            thread.start()  # not `_thread`: another caller may have replaced it, and a thread starts only once

    def refresh_now(self, failed: Address | None = None) -> None:
        """Refresh now, even if that was just done. failed: as for `refresh_soon`.

        Also checks that all reachable shards have the same number of shards.
        """
        self._not_before = 0.0
        self.refresh_soon(failed)

    def wait_until_known(self, deadline_at: float) -> None:
        """Wait for the first refresh until this time, in monotonic seconds; not for use on the request path.

        Raises EngineUnavailable if the cluster has another number of shards, or no node answers. If the time is
        up, the topology known before is used.
        """
        thread = self._thread
        assert thread
        with suppress(RuntimeError):  # the thread did not start, because the process is ending
            thread.join(max(deadline_at - time.monotonic(), 0.0))
        if self._problem or not self._addresses:
            raise EngineUnavailable(self._problem or "The cluster is being asked which node serves which slots.")

    def _refresh(self, failed: Address | None) -> None:
        """Read the topology from the first node that answers. failed: a node to ask last."""
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
        problem, best = "", list[Address | None]()
        for address in order:
            try:
                with self._client_factory.node(address, **self._timeouts) as client:
                    masters = _masters(client.execute_command("CLUSTER SLOTS"), address[0])
            except (RedisError, OSError, LookupError, TypeError, ValueError) as error:  # or the reply is invalid
                problem = str(error)
                continue
            found = [masters.get(hash_slot) for hash_slot in self._hash_slots]
            best = max(best, found, key=lambda each: len(each) - each.count(None))
            if None not in found:
                break
        if not any(best):
            raise EngineUnavailable(f"No node of the cluster can say which node serves which slots. {problem}")
        addresses = [address and self._remapped(address) for address in best]
        if self._addresses:  # nobody waits for a refresh once the topology is known and agreed on
            self._addresses = addresses
        self._check_shard_counts(addresses)
        self._addresses = addresses

    def _check_shard_counts(self, addresses: Sequence[Address | None]) -> None:
        for address in set(filter(None, addresses)):
            shards = [shard for shard, served_by in enumerate(addresses) if served_by == address]
            try:
                spread = set(self._shard_counts_at(address, shards))
            except (RedisError, OSError, ValueError):
                continue  # the next process that reaches the shard reports it
            if other := spread - {self._shards}:
                raise self.shard_count_error(other.pop())

    def _shard_counts_at(self, address: Address, shards: Sequence[int]) -> list[int]:
        """Return the number of shards that each of a node's shards stores."""
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
        """Return the commands that store the number of shards in a shard, unless it has one, and return it."""
        name = f"{{{self._namespace}:{shard}}}:shards"
        return ("SET", name, str(self._shards), "NX"), ("GET", name)

    def shard_count_error(self, other: int) -> EngineUnavailable:
        """Return the error for a shard with another number; until all agree, no calls are made."""
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
    """Return the masters of all slots from the reply to CLUSTER SLOTS. asked: host to use if the reply has ''."""
    masters = {}
    for first, last, (host, port, *_), *_ in ranges:
        name = host.decode() if isinstance(host, bytes) else host
        address = (name if name and name != "?" else asked, int(port))
        masters.update(dict.fromkeys(range(int(first), int(last) + 1), address))
    return masters
