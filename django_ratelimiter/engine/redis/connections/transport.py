"""The connections that calls are made on: one per thread at work."""

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
from .connection import Connection, connect
from .faults import explain, is_outage, raise_if_broken
from .handshake import Handshake
from .pool import ConnectionPool


class Transport:
    """Connections made as the client's pool makes them and kept between calls, one per thread at work.

    They stand beside the pool, not in it: the pool's `max_connections` is a promise to its other users.

    deadline: seconds that a decision may wait, with all that it has to wait for; a server that keeps failing is then
    not asked until a probe has succeeded. `None` = the client's own timeouts hold, and each call tries again.
    handshake, probe: as for ConnectionPool; without `probe`, the handshake's own.
    """

    def __init__(
        self,
        client: Redis,
        handshake: Handshake,
        deadline: float | None = None,
        probe: Callable[[], tuple[bytes, type]] | None = None,
    ) -> None:
        self._deadline = deadline
        connect_new = partial(connect, client.connection_pool, timeout=deadline)
        self._new_pool = partial(ConnectionPool, connect_new, handshake, probe or handshake.probe, deadline)
        self._pool = self._new_pool()
        self._finalizer = finalize(self, self._pool.close)

    def call(self, packed: bytes, deadline_at: float | None = None) -> list[Any]:
        """Send one packed call of a script and read its reply, a list. A call whose reply was lost is not sent again.

        deadline_at: monotonic seconds, where an earlier call for the same decision has used up some of the time.
        """
        pool = self._pool
        if pool.pid != getpid():  # some servers fork without telling Python
            pool = self._after_fork()
        if pool.breaker.is_open:
            pool.start_probing()
            raise EngineUnavailable(pool.breaker.reason())
        full_timeout = deadline_at is None
        if full_timeout and self._deadline is not None:
            deadline_at = monotonic() + self._deadline
        try:
            connection = pool.try_acquire()
            if connection is None:
                connection, full_timeout = pool.acquire(deadline_at), deadline_at is None
            try:
                reply = connection.call(packed, deadline_at, full_timeout=full_timeout)
                if type(reply) is not list:
                    if isinstance(reply, NoScriptError):  # nothing was run: a restart, a flush, a promoted replica
                        reply = connection.call_after_script_load(packed, deadline_at, pool.version_drop)
                    raise_if_broken(reply)
            except BaseException:  # whatever is unread on it would be taken for the next call's reply
                connection.close()
                raise
        except (RedisError, OSError) as error:
            pool.report_failure(error)
            raise EngineUnavailable(f"Redis did not decide: {explain(error)}") from error
        pool.release(connection)
        if pool.breaker.failures:
            pool.breaker.succeed()
        if type(reply) is not list:
            raise EngineUnavailable(f"Redis did not decide: {explain(reply)}") from reply
        return reply

    def pipeline(self, packed: bytes, replies: int) -> Callable[[], list[Any]]:
        """Send several calls at once. The function that is returned reads so many replies, which may be exceptions.

        Each step may take the deadline. An outage raises as in `call`, after the calls before and behind it were made.
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

    @property
    def is_open(self) -> bool:
        """Whether the server is not asked at present."""
        return self._pool.breaker.is_open

    def drop_idle(self) -> None:
        """Close what is idle: one of these connections has just given a reply that is none."""
        self._pool.close_idle()

    def close(self) -> None:
        """Nobody will ask this server any more: no thread is to probe it, nor anybody to know whether it is away."""
        self._finalizer()
        self.retire()

    def retire(self) -> None:
        """Nobody is to know any more whether this server is away; calls under way go on."""
        self._pool.breaker.retire()

    def _deadline_from_now(self) -> float | None:
        return None if self._deadline is None else monotonic() + self._deadline

    def _after_fork(self) -> ConnectionPool:
        """Start with a new pool: sockets and thread belong to the parent."""
        self._finalizer.detach()
        inherited, self._pool = self._pool, self._new_pool()
        self._finalizer = finalize(self, self._pool.close)
        inherited.close_idle()
        return self._pool


@contextmanager
def _reporting_to(pool: ConnectionPool) -> Iterator[None]:
    """Have a failure counted, and raise it as an outage."""
    try:
        yield
    except (RedisError, OSError) as error:
        pool.report_failure(error)
        raise EngineUnavailable(f"Redis did not decide: {explain(error)}") from error


@contextmanager
def _closing_if_useless(connection: Connection) -> Iterator[None]:
    """Close a connection where something was raised: what is unread on it would be taken for the next call's reply."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
