"""The nodes of a cluster: each call goes to the one that serves its shard, and follows where that sends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, Final, TypeVar

from redis import Redis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.exceptions import MovedError, RedisError, ResponseError

from ....exceptions import EngineUnavailable
from ...base import Version
from ..connections.async_transport import AsyncLinks
from ..connections.clients import Access, Address
from ..connections.connection import Burst
from ..connections.faults import explained
from ..connections.greeting import Greeting
from ..connections.transport import Links
from ..protocol import Planner
from .lazy_client import access_of
from .publish import MOST_TURNS, Publication
from .topology import PATIENCE, Topology

T = TypeVar("T")

LOST: Final = f"The nodes of the cluster sent a call on {MOST_TURNS} times."


class _OfEach:
    """Something for each node, made when it is first needed and forgotten with the node.

    end: told of what is forgotten.
    """

    def __init__(
        self, topology: Topology, make: Callable[[Address], Any], end: Callable[[Any], None] = lambda made: None
    ) -> None:
        self._topology = topology
        self._make, self._end = make, end
        self._made: dict[Address, Any] = {}

    def at(self, address: Address) -> Any:
        made = self._made.get(address)
        if made is None:
            for gone in set(self._made) - self._topology.in_use:
                if (forgotten := self._made.pop(gone, None)) is not None:
                    self._end(forgotten)
            made = self._made.setdefault(address, self._make(address))
        return made

    def known(self, address: Address) -> Any:
        """What was made for a node, if anything was."""
        return self._made.get(address)

    @property
    def all(self) -> list[Any]:
        """What was made so far."""
        return list(self._made.values())


class Nodes:
    """The nodes as threads reach them.

    deadline: seconds that a decision may wait; `None` = the client's own timeouts hold.
    """

    def __init__(self, access: Access, topology: Topology, greeting: Greeting, deadline: float | None) -> None:
        self._access = access
        self._topology = topology
        self._deadline = deadline
        self._clients = _OfEach(topology, access.node)

        def link(address: Address) -> Links:
            return Links(access.node(address), greeting, deadline, lambda: _probe(topology, greeting, address))

        self._links = _OfEach(topology, link, Links.abandon)

    def ask(self, shard: int, call: bytes, until: float | None = None) -> Any:
        """Send one packed call to the node of a shard, see Links.ask."""
        wait = 2 * PATIENCE if self._deadline is None else self._deadline
        address = self._topology.address(shard, wait)
        for _ in range(MOST_TURNS):
            try:
                return self._links.at(address).ask(call, until)
            except EngineUnavailable as error:
                address = _moved_to(self._topology, shard, address, error)
        raise EngineUnavailable(LOST)

    def is_down(self, shard: int) -> bool:
        """Whether the node of a shard is not asked at present."""
        return _is_down(self._links, self._topology.served_by(shard))

    def distrust(self, shard: int) -> None:
        """See Links.distrust, of the node of a shard."""
        address = self._topology.served_by(shard)
        if address is not None:
            self._links.at(address).distrust()

    def node_of(self, shard: int) -> Address | None:
        """What tells the node of a shard from others; `None` if it is not known."""
        return self._topology.served_by(shard)

    @property
    def only_in_threads(self) -> bool:
        """Whether these nodes cannot be reached as their options say but by threads."""
        return self._access.only_in_threads

    def run(self, shard: int, command: Callable[[Redis], T]) -> T:
        """Run a command off the path of decisions, through a client of the node; it may be repeated without harm."""
        address = self._topology.address(shard, 2 * PATIENCE)
        for _ in range(MOST_TURNS):
            try:
                return command(self._clients.at(address))
            except (RedisError, OSError) as cause:
                failed, error = address, EngineUnavailable(f"Redis did not do it: {explained(cause)}")
                if not isinstance(cause, ResponseError) or isinstance(cause, MovedError):
                    self._topology.ask_again(failed)
                    self._topology.await_answer(monotonic() + 2 * PATIENCE)
                    address = self._topology.known_address(shard)
                if address == failed:
                    raise error from cause
        raise EngineUnavailable(LOST)

    def publish(self, planner: Planner, version: int | Version) -> None:
        """Put a version in force in every shard that can be reached, with all nodes at once.

        Meanwhile the cluster is asked again who serves what, for those who cannot be reached where they were.
        Raises EngineUnavailable if a shard could not be told, or is one of another number of them than we say.
        """
        until = monotonic() + (2 * PATIENCE if self._deadline is None else self._deadline)
        self._topology.ask_again()
        if not self._topology.in_use:
            self._topology.await_answer(until)
        publication = Publication(planner, self._topology, version)
        self._publish_in_turns(publication)
        if not publication.is_done:
            self._topology.await_answer(until)
            self._publish_in_turns(publication)  # where others have taken over
        publication.finish()

    def _publish_in_turns(self, publication: Publication) -> None:
        while due := publication.due():
            bursts = {address: self._links.at(address).burst(*burst) for address, burst in due.items()}
            problems = {address: error for address, burst in bursts.items() if (error := _begun(burst))}
            for address, burst in bursts.items():
                publication.take(address, problems.get(address) or _ended(burst))


class AsyncNodes:
    """The nodes as event loops reach them. most: calls at work at once on one event loop with one node."""

    def __init__(
        self, access: Access, topology: Topology, greeting: Greeting, most: int, deadline: float | None
    ) -> None:
        self._access = access
        self._topology = topology
        self._deadline = deadline

        def link(address: Address) -> AsyncLinks:
            client = access.async_node(address)
            return AsyncLinks(client, greeting, most, deadline, lambda: _probe(topology, greeting, address))

        self._links = _OfEach(topology, link, AsyncLinks.abandon)

    async def ask(self, shard: int, call: bytes, until: float | None = None, kind: type = list) -> Any:
        """Send one packed call to the node of a shard, see AsyncLinks.ask."""
        address = await self._address(shard)
        for _ in range(MOST_TURNS):
            try:
                return await self._links.at(address).ask(call, until, kind)
            except EngineUnavailable as error:
                address = _moved_to(self._topology, shard, address, error)
        raise EngineUnavailable(LOST)

    def is_down(self, shard: int) -> bool:
        """Whether the node of a shard is not asked at present."""
        return _is_down(self._links, self._topology.served_by(shard))

    def distrust(self, shard: int) -> None:
        """See AsyncLinks.distrust, of the node of a shard."""
        address = self._topology.served_by(shard)
        if address is not None:
            self._links.at(address).distrust()

    async def publish(self, planner: Planner, version: int | Version) -> None:
        """Put a version in force, see Nodes.publish."""
        until = monotonic() + (2 * PATIENCE if self._deadline is None else self._deadline)
        self._topology.ask_again()
        if not self._topology.in_use:
            await asyncio.to_thread(self._topology.await_answer, until)
        publication = Publication(planner, self._topology, version)
        await self._publish_in_turns(publication)
        if not publication.is_done:
            await asyncio.to_thread(self._topology.await_answer, until)
            await self._publish_in_turns(publication)
        publication.finish()

    async def _publish_in_turns(self, publication: Publication) -> None:
        while due := publication.due():
            answers = await asyncio.gather(*(self._answer(address, burst) for address, burst in due.items()))
            for address, answer in zip(due, answers, strict=True):
                publication.take(address, answer)

    async def _answer(self, address: Address, burst: Burst) -> list[Any] | EngineUnavailable:
        try:
            replies: list[Any] = await self._links.at(address).burst(*burst)
        except EngineUnavailable as error:
            return error
        return replies

    async def close(self) -> None:
        """Close this event loop's idle connections."""
        for links in self._links.all:
            await links.close()

    async def _address(self, shard: int) -> Address:
        if self._topology.is_known:
            return self._topology.known_address(shard)
        wait = 2 * PATIENCE if self._deadline is None else self._deadline
        return await asyncio.to_thread(self._topology.address, shard, wait)


def nodes_of(client: RedisCluster, planner: Planner, deadline: float | None) -> Nodes:
    """The nodes of a cluster among which a planner's keys are spread."""
    access = access_of(client)
    return Nodes(access, Topology(access, planner.namespace, planner.shards), Greeting(planner), deadline)


def async_nodes_of(
    client: AsyncRedisCluster | RedisCluster, planner: Planner, most: int, deadline: float | None
) -> AsyncNodes:
    """The same for event loops."""
    access = access_of(client)
    topology = Topology(access, planner.namespace, planner.shards)
    return AsyncNodes(access, topology, Greeting(planner), most, deadline)


def _probe(topology: Topology, greeting: Greeting, address: Address) -> tuple[bytes, type]:
    """What the node at an address is probed with; it is about one of its own shards."""
    return greeting.probe(next(iter(topology.shards_at(address)), None))


def _is_down(links: _OfEach, address: Address | None) -> bool:
    made = None if address is None else links.known(address)
    return address is None or (made is not None and made.is_open)


def _begun(burst: Generator[None, None, list[Any]]) -> EngineUnavailable | None:
    """Send it; what has kept us from that."""
    try:
        next(burst)
    except EngineUnavailable as error:
        return error
    return None


def _ended(burst: Generator[None, None, list[Any]]) -> list[Any] | EngineUnavailable:
    """The replies to what was sent."""
    try:
        next(burst)
    except StopIteration as end:
        replies: list[Any] = end.value
        return replies
    except EngineUnavailable as error:
        return error
    raise AssertionError("A burst has two steps.")


def _moved_to(topology: Topology, shard: int, address: Address, error: EngineUnavailable) -> Address:
    """Where a call is sent instead that the node at an address did not answer; raises the error if nowhere.

    Nor is it sent in advance of a move: usage counted there would stand in the way of what is still to come.
    """
    redirection = topology.redirection(shard, address, error)
    if redirection is None or redirection.asking:
        raise error
    return redirection.address
