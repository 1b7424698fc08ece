"""The connections of one process to one server, and the thread that sees to them when something is amiss."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final

from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ...breaker import CircuitBreaker
from .connection import Connection, VersionDrop
from .faults import connection_error, raise_if_broken
from .handshake import Handshake

#: Seconds for each step of connecting in the background, and for each reply there that decides nothing.
CONNECT_TIMEOUT: Final = 2.0


class PoolTimeout(RedisTimeoutError):
    """There was no connection in time, but the server has just greeted or answered others: it does not fail."""


class ConnectionPool:
    """Idle connections, and a thread that makes more while calls wait for them, and probes while the breaker is open.

    While all is well there is no such thread, for each call finds an idle connection. One is made in the background
    rather than by the call: looking up a name, handshake and authenticating have no common deadline, and what takes
    longer than the call may wait is finished for the next one.

    connect: connects, waiting so many seconds for each step at most. handshake: what is said on each new connection.
    probe: a call that only a server that can decide answers without an error, and the kind of its reply. deadline:
    seconds for a call; `None` = the client's own timeouts hold, calls connect themselves, and the breaker never opens.
    """

    def __init__(
        self,
        connect: Callable[[float | None], Connection],
        handshake: Handshake,
        probe: Callable[[], tuple[bytes, type]],
        deadline: float | None,
    ) -> None:
        self.idle: deque[Connection] = deque()
        self.breaker = CircuitBreaker()
        self.version_drop = VersionDrop(handshake.version_drop)
        self.pid = os.getpid()
        self.waiters = 0
        self._connect_new, self._handshake, self._probe_call, self._deadline = connect, handshake, probe, deadline
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False
        self._round_trip = float("inf")
        self._connected = self._failed = 0
        self._error: Exception = RedisTimeoutError("not tried yet")

    def try_acquire(self) -> Connection | None:
        """An idle connection that is sound."""
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return None
            try:
                if connection.is_usable():
                    return connection
            except (RedisError, OSError):
                pass
            connection.close()  # closed by the server, or with something unread on it

    def acquire(self, deadline_at: float | None) -> Connection:
        """A connection, as soon as there is one. Raises what connecting has raised, or RedisTimeoutError."""
        if deadline_at is None or self._deadline is None:
            return self._connect_new(None)
        with self._changed:
            self.waiters += 1
            connected, failed = self._connected, self._failed
            try:
                self._start_thread()
                while (left := deadline_at - monotonic()) > 0:
                    if (connection := self.try_acquire()) is not None:
                        if left >= min(self._round_trip, self._deadline / 2):
                            return connection
                        self.release(connection)  # too late for a reply: it is better kept for others
                        break
                    if self._failed != failed:
                        raise connection_error(self._error)
                    self._changed.wait(left)
                late = RedisTimeoutError if self._connected == connected else PoolTimeout
                raise late("No connection within the deadline; it is being made for later calls.")
            finally:
                self.waiters -= 1

    def release(self, connection: Connection) -> None:
        """Keep a connection whose call has been answered for the next one."""
        self.idle.append(connection)
        if self.waiters:
            with self._changed:
                self._changed.notify()

    def report_failure(self, error: Exception) -> None:
        """Note that a call has failed; after some, unless there were too many at once, the thread begins to probe.

        What is idle then may be as lost, as where a firewall has forgotten what was quiet for long.
        """
        if (
            self._deadline is not None
            and not isinstance(error, PoolTimeout)
            and self.breaker.fail(connection_error(error))
        ):
            self.close_idle()
            self.start_probing()

    def start_probing(self) -> None:
        """Have the thread begin, unless it has; where there was none to be had, there may be one now."""
        if self._thread is None:
            with self._changed, suppress(RedisError):
                self._start_thread()

    def close(self) -> None:
        """End the thread, and close what is idle."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.close_idle()

    def close_idle(self) -> None:
        """Close what is idle; where it is a parent process's, only our hold on it."""
        with suppress(IndexError):
            while True:
                self.idle.pop().close()

    def _start_thread(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and not self._closed:
            thread = Thread(target=self._run, name="ratelimiter-redis", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads to be had, or the process is about to end
                raise RedisTimeoutError(f"no thread to connect in: {error}") from error
            self._thread = thread

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                task()
            except Exception as error:  # anything at all: a resolver, a provider of credentials, TLS
                self.breaker.fail_probe(connection_error(error))
                with self._changed:
                    self._failed += 1
                    self._error = error
                    self._changed.notify_all()

    def _next_task(self) -> Callable[[], None] | None:
        """What to do now; waits until a probe is due. `None` = nothing, and the thread is gone."""
        with self._changed:
            while not self._closed:
                if not self.breaker.is_open:
                    if self.waiters > len(self.idle):
                        return self._add_connection
                    break
                if not (wait := self.breaker.next_probe_in()):
                    return self._add_connection
                self._changed.wait(wait)
            self._thread = None
            return None

    def _add_connection(self) -> None:
        connection = self._connect_new(CONNECT_TIMEOUT)
        try:
            self._shake_hands(connection)
            if self.breaker.is_open:
                self._probe_decision(connection)
                self.breaker.close()
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self.idle.append(connection)
            with self._changed:
                self._connected += 1
                self._changed.notify()

    def _shake_hands(self, connection: Connection) -> None:
        steps = self._handshake.steps()
        turn: Any = partial(next, steps)
        with suppress(StopIteration):
            while True:
                pipeline = turn()
                began = monotonic()
                connection.send(pipeline.packed)
                turn = partial(steps.send, connection.read_replies(pipeline.replies, began + CONNECT_TIMEOUT))
                self._round_trip = min(self._round_trip, monotonic() - began)

    def _probe_decision(self, connection: Connection) -> None:
        """As a request asks: what counts is when the reply arrives, not when our thread gets its turn."""
        call, kind = self._probe_call()
        deadline_at = monotonic() + (self._deadline or CONNECT_TIMEOUT)
        reply = connection.call(call, deadline_at, full_timeout=False)
        if isinstance(reply, NoScriptError):
            reply = connection.call_after_script_load(call, deadline_at, self.version_drop)
        raise_if_broken(reply, kind)
