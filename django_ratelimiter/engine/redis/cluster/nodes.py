"""The nodes of a cluster: each call goes to the node of its shard, and follows redirections; a version to all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from redis import Redis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

from ....exceptions import EngineUnavailable
from ...base import Version
from ...call import NO_CHARGES
from ..connections.async_transport import AsyncTransport
from ..connections.clients import Address, ClientFactory, client_factory
from ..connections.connection import LOAD, Pipeline
from ..connections.faults import explain
from ..connections.server import Handshake, Server
from ..connections.transport import Transport
from ..packing import command as packed_command
from ..protocol import CallEncoder, ScriptMode
from .topology import REFRESH_TIMEOUT, Redirection, Topology

T = TypeVar("T")

#: How often a call follows a redirection.
MAX_REDIRECTIONS: Final = 5

ASKING: Final = packed_command("ASKING")

LOST: Final = f"The nodes of the cluster sent a call on {MAX_REDIRECTIONS} times."


class PerNode(Generic[T]):
    """An object for each node, made at the first use and dropped with the node.

    close: called with each dropped object.
    """

    def __init__(
        self, topology: Topology, make: Callable[[Address], T], close: Callable[[T], None] = lambda created: None
    ) -> None:
        self._topology = topology
        self._make, self._close = make, close
        self._by_address: dict[Address, T] = {}

    def at(self, address: Address) -> T:
        """Return the object of a node."""
        created = self._by_address.get(address)
        if created is None:
            for gone in set(self._by_address) - self._topology.addresses_in_use:
                if (forgotten := self._by_address.pop(gone, None)) is not None:
                    self._close(forgotten)
            created = self._by_address.setdefault(address, self._make(address))
        return created

    def get(self, address: Address) -> T | None:
        """Return the object of a node, if there is one."""
        return self._by_address.get(address)

    @property
    def all(self) -> list[T]:
        """Return all objects."""
        return list(self._by_address.values())


class VersionBroadcast:
    """One version, and the shards that do not have it yet.

    Repeat: send what is `due`, and pass the replies of each node to `feed`; at the end, call `finish`.
    """

    def __init__(self, encoder: CallEncoder, topology: Topology, version: int | Version) -> None:
        self._topology, self._shards = topology, encoder.shards
        at = encoder.time_to_send()
        self._calls = {
            shard: encoder.encode(ScriptMode.PUBLISH, NO_CHARGES, (), version, at, (at or 0,), shard=shard)
            for shard in range(encoder.shards)
        }
        self._sent_on: dict[int, Redirection] = {}
        self._missed: dict[int, Address] = {}  # the node that did not answer, by shard
        self._sent: dict[Address, list[tuple[int, bool]]] = {}  # shards, and whether ASKING is sent first
        self._problem: EngineUnavailable | None = None
        self._turns = 0

    def due(self) -> Mapping[Address, Pipeline]:
        """Return the calls to send now, by node; empty = none, or no more."""
        self._sent = {}
        self._turns += 1
        if self._turns <= MAX_REDIRECTIONS:
            for shard in self._calls:
                sent_on = self._sent_on.pop(shard, None)
                address, asking = sent_on or (self._topology.node_of(shard), False)
                if address is not None and address != self._missed.get(shard):
                    self._sent.setdefault(address, []).append((shard, asking))
        return {address: self._pipeline(shards) for address, shards in self._sent.items()}

    def _pipeline(self, shards: list[tuple[int, bool]]) -> Pipeline:
        """Return the calls for these shards. The script is loaded first, so that no call fails for lack of it.

        Before each call come two commands: ASKING for a node that is taking over the slot, else those that check the
        number of shards, which a flush deletes.
        """
        before = (ASKING * 2 if asking else self._shard_count_commands(shard) for shard, asking in shards)
        calls = (self._calls[shard] for shard, _ in shards)
        return Pipeline(LOAD + b"".join(map(bytes.__add__, before, calls)), 1 + 3 * len(shards))

    def _shard_count_commands(self, shard: int) -> bytes:
        return b"".join(packed_command(*words) for words in self._topology.shard_count_commands(shard))

    def feed(self, address: Address, answer: list[Any] | EngineUnavailable) -> None:
        """Process the reply of a node: a list that may contain errors, or no reply.

        Raises EngineUnavailable if a shard has another number of shards.
        """
        if isinstance(answer, EngineUnavailable):
            for shard, _ in self._sent[address]:
                self._miss(shard, address, answer)
            return
        for (shard, _), number, reply in zip(self._sent[address], answer[2::3], answer[3::3], strict=True):
            if isinstance(number, bytes) and number.isdigit() and int(number) != self._shards:
                raise self._topology.shard_count_error(int(number))
            self._note(shard, address, reply)

    def _note(self, shard: int, address: Address, reply: Any) -> None:
        if isinstance(reply, list) and reply:
            del self._calls[shard]  # it, or a later version, is current there
        elif not isinstance(reply, NoScriptError):  # the script was lost, and is loaded again next time
            error = EngineUnavailable(f"Redis did not decide: {explain(reply)}")
            error.__cause__ = reply if isinstance(reply, Exception) else None
            self._miss(shard, address, error)

    def _miss(self, shard: int, address: Address, error: EngineUnavailable) -> None:
        redirection = self._topology.redirection(shard, address, error)
        if redirection is not None:
            self._sent_on[shard] = redirection
        else:
            self._missed[shard], self._problem = address, error

    @property
    def is_done(self) -> bool:
        """True if all shards have the version."""
        return not self._calls

    def finish(self) -> None:
        """Raise EngineUnavailable if a shard does not have the version."""
        if self._calls:
            problem = self._problem or "no node serves them."
            missed = f"{len(self._calls)} of {self._shards} shards could not be reached: {problem}"
            raise EngineUnavailable(missed) from self._problem


class ClusterTransport:
    """The nodes, for threads.

    deadline: maximum seconds for a decision; `None` = the client's own timeouts apply.
    """

    def __init__(
        self, client_factory: ClientFactory, topology: Topology, handshake: Handshake, deadline: float | None
    ) -> None:
        self.client_factory, self.topology, self.deadline = client_factory, topology, deadline
        self._clients = PerNode(topology, client_factory.node)

        def transport_to(address: Address) -> Transport:
            server = Server(handshake, lambda: handshake.probe(next(iter(topology.shards_at(address)), None)))
            return Transport(client_factory.node(address), server, deadline)

        self.transports: PerNode[Transport] = PerNode(topology, transport_to, Transport.close)

    def call(self, shard: int, call: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        """Send one packed call to the node of a shard, see Transport.call."""
        address = self.topology.address(shard, self.deadline or 2 * REFRESH_TIMEOUT)
        for _ in range(MAX_REDIRECTIONS):
            try:
                return self.transports.at(address).call(call, deadline_at, kind)
            except EngineUnavailable as error:
                address = _moved_to(self.topology, shard, address, error)
        raise EngineUnavailable(LOST)

    def is_down(self, shard: int) -> bool:
        """Return whether calls to the node of a shard are stopped at present."""
        address = self.topology.node_of(shard)
        transport = None if address is None else self.transports.get(address)
        return address is None or (transport is not None and transport.server.breaker.is_open)

    def server_of(self, shard: int) -> Server:
        """Return what this process knows about the node of a shard; raises EngineUnavailable if no node is known."""
        return self.transports.at(self.topology.known_address(shard)).server

    def node_of(self, shard: int) -> Address | None:
        """Return an id of the node of a shard; `None` if it is not known, even after waiting at the start."""
        with suppress(EngineUnavailable):
            return self.topology.address(shard, self.deadline or 2 * REFRESH_TIMEOUT)
        return None

    def run(self, shard: int, command: Callable[[Redis], T]) -> T:
        """Run a command outside of the request path, through a client of the node; it must be safe to repeat."""
        address = self.topology.address(shard, 2 * REFRESH_TIMEOUT)
        for _ in range(MAX_REDIRECTIONS):
            try:
                return command(self._clients.at(address))
            except (RedisError, OSError) as cause:
                failed, error = address, EngineUnavailable(explain(cause))
                if not isinstance(cause, ResponseError) or isinstance(cause, MovedError):
                    self.topology.refresh_now(failed)
                    self.topology.wait_until_known(monotonic() + 2 * REFRESH_TIMEOUT)
                    address = self.topology.known_address(shard)
                if address == failed:
                    raise error from cause
        raise EngineUnavailable(LOST)

    @property
    def servers(self) -> list[Server]:
        """Return what this process knows about each node."""
        return [transport.server for transport in self.transports.all]

    def publish(self, encoder: CallEncoder, version: int | Version) -> None:
        """Make a version current in every shard that can be reached, with all nodes at once.

        Meanwhile the topology is read again, for shards whose node does not answer.
        Raises EngineUnavailable if a shard could not be reached, or was set up with another number of shards.
        """
        deadline_at = monotonic() + (2 * REFRESH_TIMEOUT if self.deadline is None else self.deadline)
        self.topology.refresh_now()
        if not self.topology.addresses_in_use:
            self.topology.wait_until_known(deadline_at)
        broadcast = VersionBroadcast(encoder, self.topology, version)
        self._broadcast(broadcast)
        if not broadcast.is_done:
            self.topology.wait_until_known(deadline_at)
            self._broadcast(broadcast)  # to the nodes that have taken over
        broadcast.finish()

    def _broadcast(self, broadcast: VersionBroadcast) -> None:
        while due := broadcast.due():
            sent = {
                address: _attempt(partial(self.transports.at(address).pipeline, *pipeline))
                for address, pipeline in due.items()
            }
            for address, read in sent.items():
                broadcast.feed(address, read if isinstance(read, EngineUnavailable) else _attempt(read))


class AsyncClusterTransport:
    """The nodes, for event loops. max_connections: maximum number of calls at once from one event loop to one node."""

    def __init__(self, threads: ClusterTransport, max_connections: int) -> None:
        self.threads = threads
        self._topology, self._deadline = threads.topology, threads.deadline

        def transport_to(address: Address) -> AsyncTransport:
            client, in_threads = threads.client_factory.async_node(address), threads.transports.at(address)
            return AsyncTransport(client, in_threads.server, max_connections, threads.deadline, in_threads)

        self._transports = PerNode(threads.topology, transport_to)

    async def call(self, shard: int, call: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        """Send one packed call to the node of a shard, see AsyncTransport.call."""
        address = await self._address(shard)
        for _ in range(MAX_REDIRECTIONS):
            try:
                return await self._transports.at(address).call(call, deadline_at, kind)
            except EngineUnavailable as error:
                address = _moved_to(self._topology, shard, address, error)
        raise EngineUnavailable(LOST)

    async def aclose(self) -> None:
        """Close this event loop's idle connections."""
        for transports in self._transports.all:
            await transports.aclose()

    async def _address(self, shard: int) -> Address:
        if self._topology.is_known:
            return self._topology.known_address(shard)
        wait = 2 * REFRESH_TIMEOUT if self._deadline is None else self._deadline
        return await asyncio.to_thread(self._topology.address, shard, wait)


def cluster_transport(
    client: AsyncRedisCluster | RedisCluster, encoder: CallEncoder, deadline: float | None
) -> ClusterTransport:
    """Return the transport to the nodes of a cluster. encoder: spreads the keys over the shards."""
    factory = client_factory(client)
    return ClusterTransport(factory, Topology(factory, encoder.namespace, encoder.shards), Handshake(encoder), deadline)


def _attempt(step: Callable[[], T]) -> T | EngineUnavailable:
    """Return the result of a step, or the EngineUnavailable that it raises."""
    try:
        return step()
    except EngineUnavailable as error:
        return error


def _moved_to(topology: Topology, shard: int, address: Address, error: EngineUnavailable) -> Address:
    """Return where to send a call that the node at this address did not answer; raises the error if nowhere.

    It is not sent ahead of a slot's move: usage counted there would conflict with the keys that are still to be moved.
    """
    redirection = topology.redirection(shard, address, error)
    if redirection is None or redirection.asking:
        raise error
    return redirection.address
