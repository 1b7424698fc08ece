"""The connections for calls: one for each thread that makes a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from os import getpid
from time import monotonic
from typing import Any
from weakref import finalize

from redis import Redis
from redis.exceptions import NoScriptError, RedisError

from ....exceptions import EngineUnavailable
from .connection import Connection
from .faults import explain, is_outage, raise_if_broken
from .pool import ConnectionPool
from .server import Server


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
