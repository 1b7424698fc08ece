"""The connections of one process to one server: one for each thread that makes a call.

A thread opens more, and probes the server after failures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from os import getpid
from threading import Condition, Thread, main_thread
from time import monotonic
from typing import Any, Final
from weakref import WeakSet, finalize

from redis import Redis
from redis.connection import ConnectionPool as ClientPool
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ....exceptions import EngineUnavailable
from .connection import Connection, connect
from .faults import PoolTimeout, connection_error, explain, is_outage, raise_if_broken
from .server import Server

#: Seconds for each step of connecting in the background, and for each reply there that is not a decision.
CONNECT_TIMEOUT: Final = 2.0


class ConnectionPool:
    """Idle connections, and a thread that opens more while calls wait for them, and probes while the breaker is open.

    Normally there is no such thread, because each call finds an idle connection. Connections are opened in the
    background and not by the call: name lookup, handshake and authentication have no common deadline. If they take
    longer than the call may wait, the connection is there for the next call.

    client_pool: how to connect, and the maximum number of connections. deadline: seconds for a call; `None` = the
    client's own timeouts apply, calls connect themselves, and the breaker never opens.
    """

    def __init__(self, client_pool: ClientPool, server: Server, deadline: float | None) -> None:
        self.idle: deque[Connection] = deque()
        self.server, self.breaker = server, server.breaker
        server.pools.add(self)
        #: The process that the connections belong to.
        self.pid: int = getpid()
        #: The number of calls that wait for a connection.
        self.waiters: int = 0
        self._client_pool, self._deadline = client_pool, deadline
        self._max_connections: float = getattr(client_pool, "max_connections", float("inf"))
        self._open: WeakSet[Connection] = WeakSet()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closed = False
        #: The shortest time of a handshake, in seconds.
        self._round_trip = float("inf")
        #: Numbers of connections that the thread has opened, and could not open; and of calls without a connection that
        #: counted as failures of the server.
        self._connected = self._failed = self._counted = 0
        self._error: Exception = RedisTimeoutError("not tried yet")

    def try_acquire(self) -> Connection | None:
        """Return an idle connection that is usable."""
        while True:
            try:
                connection = self.idle.pop()
            except IndexError:
                return None
            if connection.generation == self.server.generation and connection.is_usable():
                return connection
            connection.close()  # old, closed by the server, or with unread data

    def acquire(self, deadline_at: float | None) -> Connection:
        """Return a connection as soon as there is one. Raises the exception of connecting, or RedisTimeoutError."""
        if deadline_at is None or self._deadline is None:
            return self._connect_new(None)
        if not main_thread().is_alive():  # the process ends, and may start no thread
            self._add_connection()
        with self._changed:
            self.waiters += 1
            connected, failed, counted = self._connected, self._failed, self._counted
            try:
                while (left := deadline_at - monotonic()) > 0:
                    if (connection := self.try_acquire()) is not None:
                        if left >= min(self._round_trip, self._deadline / 2):
                            return connection
                        self.release(connection)  # too late for a reply: others can use it
                        break
                    if self._failed != failed:
                        raise self._counted_once(connection_error(self._error), counted)
                    if not self._is_full:
                        self._start_thread()
                    self._changed.wait(left)
                if self._is_full:
                    raise PoolTimeout(f"All {self._max_connections} connections (max_connections) were in use.")
                late = "No connection within the deadline; it is being made for later calls."
                if self._connected != connected:
                    raise PoolTimeout(late)
                raise self._counted_once(RedisTimeoutError(late), counted)
            finally:
                self.waiters -= 1

    def _counted_once(self, error: RedisError, counted: int) -> RedisError:
        """Return the error for a call that got no connection. Of calls that wait together, one counts as a failure.

        counted: how many had counted when the call began to wait.
        """
        if self._counted != counted:
            return PoolTimeout(str(error))
        self._counted += 1
        return error

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next call."""
        self.idle.append(connection)
        if self.waiters:
            self.notify()

    def notify(self) -> None:
        """Let a call look that waits for a connection."""
        with self._changed:
            self._changed.notify()

    def wake(self) -> None:
        """Let the thread look again whether it must probe, or open a connection for a call that waits."""
        with self._changed:
            self._changed.notify_all()

    def report_failure(self, error: Exception) -> None:
        """Record a failed call. After several, the thread begins to probe, unless too many calls ran at once."""
        if self._deadline is not None and self.server.fail(error):
            self.start_probing()

    def start_probing(self) -> None:
        """Start the thread if it is not running, also if no thread could be started before."""
        if self._thread is None:
            with self._changed, suppress(RedisError):
                self._start_thread()

    def close(self) -> None:
        """End the thread, and close idle connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.close_idle()

    def close_idle(self) -> None:
        """Close idle connections; in a forked process only our copies, because they belong to the parent."""
        with suppress(IndexError):
            while True:
                self.idle.pop().close()

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= self._max_connections

    def _connect_new(self, seconds: float | None) -> Connection:
        """Open a connection. seconds: for each step; `None` = the client's timeouts."""
        connection = connect(self._client_pool, seconds, self._deadline, self.server.generation, self._forget)
        self._open.add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self.waiters:
            self.notify()  # another one may be opened

    def _start_thread(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and not self._closed:
            thread = Thread(target=self._run, name="ratelimiter-redis", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads available, or the process is ending
                raise RedisTimeoutError(f"no thread to connect in: {error}") from error
            self._thread = thread

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                task()
            except Exception as error:  # anything: from name lookups, credential providers, TLS
                self.breaker.fail_probe(connection_error(error))
                with self._changed:
                    self._failed += 1
                    self._error = error
                    self._changed.notify_all()

    def _next_task(self) -> Callable[[], None] | None:
        """Return the next task; waits until a probe is due. `None` = none, and the thread ends."""
        with self._changed:
            while not self._closed:
                if not self.breaker.is_open:
                    if self.waiters > len(self.idle) and not self._is_full:
                        return self._add_connection
                    break
                if self.breaker.claim_probe():
                    return self._add_connection
                self._changed.wait(self.breaker.next_probe_in())
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
        steps = self.server.shake_hands(connection)
        turn: Any = partial(next, steps)
        with suppress(StopIteration):
            while True:
                pipeline = turn()
                began = monotonic()
                connection.send(pipeline.packed)
                turn = partial(steps.send, connection.read_replies(pipeline.replies, began + CONNECT_TIMEOUT))
                self._round_trip = min(self._round_trip, monotonic() - began)

    def _probe_decision(self, connection: Connection) -> None:
        """Probe like a request. The time of the reply's arrival counts, not the time when this thread runs."""
        call, kind = self.server.probe()
        deadline_at = monotonic() + (self._deadline or CONNECT_TIMEOUT)
        reply = connection.call(call, deadline_at, full_timeout=False)
        if isinstance(reply, NoScriptError):
            reply = connection.call_after_script_load(call, deadline_at, self.server.version_drop)
        raise_if_broken(reply, kind)


class Transport:
    """Connections opened in the same way as the client's pool does, and kept between calls.

    They are not of that pool, but have the same maximum number.

    deadline: maximum seconds for a decision, including all waits; a server that keeps failing is then not called until
    a probe succeeds. `None` = the client's own timeouts apply, and each call tries again.
    """

    def __init__(self, client: Redis, server: Server, deadline: float | None = None) -> None:
        self.server, self._deadline = server, deadline
        self._new_pool = partial(ConnectionPool, client.connection_pool, server, deadline)
        self._pool = self._new_pool()
        self._finalizer = finalize(self, self._pool.close)

    def call(self, packed: bytes, deadline_at: float | None = None, kind: type = list) -> Any:
        """Send one packed call and return its reply. If the reply is lost, the call is not sent again.

        deadline_at: monotonic seconds, if an earlier call for the same decision has used some of the time. kind: of
        the reply; a script's is a list.
        """
        pool = self._pool
        if pool.pid != getpid():  # some servers fork without calling Python's fork hooks
            pool = self._after_fork()
        if pool.breaker.is_open:
            pool.start_probing()
            raise EngineUnavailable(pool.breaker.reason())
        full_timeout = deadline_at is None
        if full_timeout and self._deadline is not None:
            deadline_at = monotonic() + self._deadline
        try:
            if (connection := pool.try_acquire()) is None:
                connection, full_timeout = pool.acquire(deadline_at), deadline_at is None
            try:
                reply = connection.call(packed, deadline_at, full_timeout)
                if type(reply) is not kind:
                    if isinstance(reply, NoScriptError):  # nothing was run: a restart, a flush, a promoted replica
                        reply = connection.call_after_script_load(packed, deadline_at, self.server.version_drop)
                    raise_if_broken(reply, kind)
            except BaseException:  # unread data would be read as the next call's reply
                connection.close()
                raise
        except (RedisError, OSError) as error:
            pool.report_failure(error)
            raise EngineUnavailable(f"Redis did not decide: {explain(error)}") from error
        pool.release(connection)
        if pool.breaker.failures:
            pool.breaker.succeed()
        if type(reply) is not kind:
            raise EngineUnavailable(f"Redis did not decide: {explain(reply)}") from reply
        return reply

    def pipeline(self, packed: bytes, replies: int) -> Callable[[], list[Any]]:
        """Send several calls at once. Returns a function that reads this number of replies, which may be exceptions.

        Each step has the full deadline. An outage raises as in `call`, but calls before and after it may have run.
        """
        pool = self._pool if self._pool.pid == getpid() else self._after_fork()
        if pool.breaker.is_open:
            pool.start_probing()
            raise EngineUnavailable(pool.breaker.reason())
        with _reporting_to(pool):
            connection = pool.try_acquire() or pool.acquire(self._deadline_from_now())
            with _closing_if_useless(connection):
                connection.send(packed)

        def read() -> list[Any]:
            with _reporting_to(pool), _closing_if_useless(connection):
                received = connection.read_replies(replies, self._deadline_from_now())
                for reply in received:
                    if isinstance(reply, Exception) and is_outage(reply):
                        raise reply
            pool.release(connection)
            pool.breaker.succeed()
            return received

        return read

    def close(self) -> None:
        """Close the transport for good: its thread stops probing, and its breaker is retired."""
        self._finalizer()
        self.server.breaker.retire()

    def _deadline_from_now(self) -> float | None:
        return None if self._deadline is None else monotonic() + self._deadline

    def _after_fork(self) -> ConnectionPool:
        """Start with a new pool after a fork: sockets and thread belong to the parent."""
        self._finalizer.detach()
        self.server.begin_after_fork()
        inherited, self._pool = self._pool, self._new_pool()
        self._finalizer = finalize(self, self._pool.close)
        inherited.close_idle()
        return self._pool


@contextmanager
def _reporting_to(pool: ConnectionPool) -> Iterator[None]:
    """Record a failure, and raise it as EngineUnavailable."""
    try:
        yield
    except (RedisError, OSError) as error:
        pool.report_failure(error)
        raise EngineUnavailable(f"Redis did not decide: {explain(error)}") from error


@contextmanager
def _closing_if_useless(connection: Connection) -> Iterator[None]:
    """Close a connection after an exception: unread data would be read as the next call's reply."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
