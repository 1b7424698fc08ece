"""The state of one server, shared by the threads and all event loops of this process."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from os import getpid
from typing import Any, Final, Protocol

from redis.exceptions import ReadOnlyError

from ...breaker import CircuitBreaker
from .connection import Pipeline, VersionDrop
from .faults import PoolTimeout, connection_error
from .handshake import Handshake

#: Maximum number of threads for the calls of event loops.
MAX_THREADS: Final = 64


class Pool(Protocol):
    """The connections of the threads, or of one event loop."""

    def close_idle(self) -> None:
        """Close the idle connections. May be called in any thread."""

    def wake(self) -> None:
        """Look again whether to probe, and whether calls wait for a connection. May be called in any thread."""


class Server:
    """The state of a server: its breaker, and which connections still lead to it.

    An address can lead to another server, for example after a failover, while open connections stay with the old one.
    Whoever notices it raises the generation: connections of an earlier generation are closed instead of used.

    probe: a call that only succeeds on a server that can decide, and the type of its reply; `None` = the handshake's.
    """

    def __init__(self, handshake: Handshake, probe: Callable[[], tuple[bytes, type]] | None = None) -> None:
        self.probe, self._handshake = probe or handshake.probe, handshake
        self.version_drop: VersionDrop = VersionDrop(handshake.version_drop)
        self.generation: int = 0
        self._begin()

    def _begin(self) -> None:
        self.pid: int = getpid()
        self.breaker: CircuitBreaker = CircuitBreaker(wake=self._wake)
        #: The connection pools of the threads and of each event loop.
        self.pools: set[Pool] = set()
        #: Runs calls of event loops in threads, see AsyncTransport. It starts threads when they are needed.
        self.executor: ThreadPoolExecutor = ThreadPoolExecutor(MAX_THREADS, "ratelimiter-redis")
        #: The run, see `handshake`, of the server that new connections lead to, and all runs so far.
        self._run: bytes | None = None
        self._runs: set[bytes] = set()

    def begin_after_fork(self) -> None:
        """Start anew in a forked process, which has neither the threads nor the event loops of its parent."""
        if self.pid != getpid():
            self._begin()

    def renew(self) -> None:
        """Close idle connections, whoever opened them, and others instead of using them again."""
        self.generation += 1
        for pool in self.pools.copy():
            pool.close_idle()

    def _wake(self) -> None:
        for pool in self.pools.copy():
            pool.wake()

    def fail(self, error: Exception) -> bool:
        """Record a failed call. Returns whether probing must begin.

        Then connections are renewed: they may be lost as well, for example in a firewall that drops quiet connections.
        They lead to the same replica, if this one did.
        """
        if isinstance(error, PoolTimeout):
            return False
        opened = self.breaker.fail(connection_error(error))
        if opened or isinstance(error, ReadOnlyError):
            self.renew()
        return opened

    def shake_hands(self, connection: Any) -> Generator[Pipeline, list[Any], None]:
        """Yield the commands of each step; see `Handshake.steps`. Notices a server that was never met before."""
        run = yield from self._handshake.steps()
        if run is None:
            return
        if run not in self._runs:  # a proxy may alternate between two, which must not renew connections all the time
            if self._runs:
                self.renew()
            self._runs.add(run)
            self._run = run
        if run == self._run:
            connection.generation = self.generation
