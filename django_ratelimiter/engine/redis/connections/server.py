"""The state of one server, shared by the threads and all event loops of this process, and the handshake with it.

That checks on each new connection whether the server's version was stored since the server started.
A server restored from an older file, or a replica that becomes master before it has all data, holds an old version. The
number alone does not show that. So each shard stores, beside its version, the run that it belongs to: the server's
process, and since when it is a master. A file or a replica has another run. The script itself is never stored in a
file or replicated: if it is missing, no decision was made yet.
In both cases the version is deleted, and the next decision gets the reply that there is none: its process reads the
primary database, publishes the version, and asks again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from os import getpid
from typing import Any, Final

from redis.exceptions import ReadOnlyError

from ...base import Charge
from ...breaker import CircuitBreaker
from ...call import Call
from ...limits import Limit
from ...registry import SIMPLEST
from ..packing import command
from ..protocol import CallEncoder, ScriptMode
from ..scripts import CHECK_SHA
from .connection import LOAD, PING, Pipeline, VersionDrop
from .faults import PoolTimeout, connection_error, is_elsewhere, is_outage, is_refused

#: Maximum number of threads for the calls of event loops.
MAX_THREADS: Final = 64


#: The call of a probe: like that of a request, with a short expiry.
_PROBE: Final = Call.of([Charge("probe", Limit(1_000_000, 1, SIMPLEST))])

_ABOUT_IT: Final = command("INFO", "server") + command("INFO", "replication") + command("SCRIPT", "EXISTS", CHECK_SHA)
_RUN: Final = re.compile(rb"^(?:run_id|master_replid):(\w+)", re.MULTILINE)


class Handshake:
    """The commands on new connections to the servers of all shards."""

    def __init__(self, encoder: CallEncoder) -> None:
        shards = range(encoder.shards)
        self._versions = [encoder.version_key(shard) for shard in shards]
        self._runs = [f"{encoder.prefix(shard)}run" for shard in shards]
        at = encoder.time_to_send()
        self._probes = [
            encoder.encode(ScriptMode.CHECK, _PROBE, (), None, at, (at or 0,), shard=shard) for shard in shards
        ]
        self._questions = Pipeline(_ABOUT_IT + b"".join(command("GET", run) for run in self._runs), 3 + encoder.shards)
        #: Deletes the version of every shard, before the script is loaded to a server without it.
        self.version_drop = Pipeline(b"".join(command("DEL", version) for version in self._versions), encoder.shards)

    def steps(self) -> Generator[Pipeline, list[Any], bytes | None]:
        """Yield the commands of each step; their replies are sent back. Raises if the connection cannot be used.

        Returns the run of the server; `None` if it does not report it.
        """
        server, replication, scripts, *stored = yield self._questions
        run, is_lost = _run_of(_checked(server), _checked(replication)), _checked(scripts) == [0]
        sent: list[bytes] = []
        for version, name, known in zip(self._versions, self._runs, stored, strict=True):
            if is_elsewhere(_checked(known)):
                continue
            if is_lost or (run and known and known != run):
                sent.append(command("DEL", version))
            if run and known != run:
                sent.append(command("SET", name, run))
        if is_lost:
            sent.append(LOAD)
        if sent:
            for reply in (yield Pipeline(b"".join(sent), len(sent))):
                if isinstance(reply, Exception) and is_outage(reply):
                    raise reply
        return run

    def probe(self, shard: int | None = 0) -> tuple[bytes, type]:
        """Return a call that only succeeds on a server that can decide, and the type of its reply.

        shard: one of the server's shards; `None` = it has none, and need not decide.
        """
        return (PING, bytes) if shard is None else (self._probes[shard], list)


def _checked(reply: Any) -> Any:
    """Return a reply, or the error of a server that does not support the command. Raises any other error."""
    if isinstance(reply, Exception) and is_outage(reply) and not is_refused(reply):
        raise reply
    return reply


def _run_of(*replies: Any) -> bytes | None:
    """Return the run of a server: its process, and its time as a master. `None` if it does not report them."""
    found = [name for text in replies if isinstance(text, bytes) for name in _RUN.findall(text)]
    return b":".join(found) or None


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
        #: The pools of the threads and of each event loop. `close_idle` and `wake` may be called in any thread.
        self.pools: set[Any] = set()
        #: Runs calls of event loops in threads, see AsyncTransport. It starts threads when they are needed.
        self.executor: ThreadPoolExecutor = ThreadPoolExecutor(MAX_THREADS, "ratelimiter-redis")
        #: The run, see `Handshake`, of the server that new connections lead to, and all runs so far.
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
