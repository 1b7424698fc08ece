"""One connection: made by redis-py, with all that belongs to that, and from then on spoken to directly.

redis-py's way to send and to read costs more than the server does, and knows no deadline for a whole call.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from hiredis import Reader
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool as ClientPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.retry import Retry

from ..packing import command
from ..scripts import CHECK
from .faults import HandshakeErrors
from .tls import share_tls_context

#: Options of a pool that its own connections need, and ours must not have: what servers announce to clients that
#: asked for it would lengthen our timeouts, and stand where a reply is expected.
_NOT_OURS: Final = ("maint", "orig_", "oss_cluster_maint", "retry", "health_check_interval", "protocol")

#: Seconds for the rest of a reply that has begun to arrive when time is up.
LATE_REPLY_GRACE: Final = 0.001

_MORE: Final = object()


class Pipeline(NamedTuple):
    """Calls that are sent at once. replies: how many will come."""

    packed: bytes
    replies: int


#: A version that a server without the script holds is dropped at most once in so many seconds.
VERSION_DROP_INTERVAL: Final = 1.0

_NOTHING: Final = Pipeline(b"", 0)


class VersionDrop:
    """Drops the version that a server without the script holds, but not the one that was published in answer to that.

    A proxy that sends each call to another server, for one, asks for the script each time. If the version were dropped
    each time, no call would ever find one.

    calls: what drops it. clock: seconds.
    """

    __slots__ = ("_calls", "_not_before", "clock")

    def __init__(self, calls: Pipeline, clock: Callable[[], float] = monotonic) -> None:
        self._calls, self.clock = calls, clock
        self._not_before = -inf

    def due_commands(self) -> Pipeline:
        """What is to be sent before the script is loaded."""
        return _NOTHING if self.clock() < self._not_before else self._calls

    def mark_sent(self, sent: Pipeline) -> None:
        """Note that the server has replied to it: only then has it dropped the version."""
        if sent is self._calls:
            self._not_before = self.clock() + VERSION_DROP_INTERVAL


LOAD: Final = command("SCRIPT", "LOAD", CHECK)
PING: Final = command("PING")


def options_of(pool: Any, seconds: float | None) -> dict[str, Any]:
    """The arguments of one connection like those of this pool.

    seconds: for each step of connecting; `None` = what the pool says.
    """
    given = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_NOT_OURS)}
    given["protocol"] = 2  # a reply is all that ever arrives
    if seconds is not None:
        given["socket_timeout"] = seconds
        if "path" not in given:
            given["socket_connect_timeout"] = seconds
    return given


def reader_for(redis_connection: Any) -> Reader:
    """Reads replies as redis-py's own parser of this connection does; errors come as its exceptions, not raised."""
    parse: Callable[[str], Exception] = redis_connection._parser.parse_error

    def error_of(text: str) -> Exception:
        try:
            return parse(text)
        except Exception as error:  # an address that is none
            return InvalidResponse(f"An error that no Redis sends, {text!r}: {error}")

    return Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=_MORE)


def is_incomplete(reply: object) -> bool:
    """Whether a reader still waits for the rest of a reply."""
    return reply is _MORE


class Connection:
    """A connection for one thread at a time.

    redis_connection: redis-py's, which is connected. timeout: seconds that a call may wait for its reply; `None` = as
    redis-py has set it up.
    What it raises (OSError, RedisError) leaves it useless: close it.
    """

    __slots__ = (
        "_buffer",
        "_has_arrived",
        "_has_more",
        "_reader",
        "_receive",
        "_redis_connection",
        "_send",
        "_sock",
        "_timeout",
    )

    def __init__(self, redis_connection: Any, timeout: float | None) -> None:
        self._redis_connection = redis_connection
        self._sock: socket.socket = redis_connection._sock
        if timeout is not None:
            self._sock.settimeout(timeout)
        self._timeout = self._sock.gettimeout()
        self._reader = reader_for(redis_connection)
        self._has_more: Callable[[], bool] = self._reader.has_data
        self._buffer = bytearray(4_096)
        self._send, self._receive = self._sock.sendall, self._sock.recv_into
        self._has_arrived = _arrival_check(redis_connection)

    def is_usable(self) -> bool:
        """Whether a call may be sent: the server has not hung up, and nothing unread has arrived."""
        return not self._has_arrived(0) and not self._has_more()

    def call(self, call: bytes, deadline_at: float | None, *, full_timeout: bool) -> Any:
        """Send one call and give its reply, which may be an exception.

        deadline_at: monotonic seconds; `None` = the timeout holds for each part of the reply. full_timeout: all of the
        timeout is left.
        """
        self._send(call)
        if full_timeout:
            try:
                size = self._receive(self._buffer)
            except TimeoutError as error:
                size = self._receive_late(error)
            if not size:
                raise RedisConnectionError("Connection closed by server.")
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # any buffer will do
            reply = self._reader.gets()
            if reply is not _MORE:
                return reply
        return self._reply(deadline_at)

    def call_after_script_load(self, call: bytes, deadline_at: float | None, version_drop: VersionDrop) -> Any:
        """The same to a server that has lost the script, in one round trip."""
        drop_commands = version_drop.due_commands()
        self._send(drop_commands.packed + LOAD + call)
        loaded, reply = self.read_replies(drop_commands.replies + 2, deadline_at)[-2:]
        version_drop.mark_sent(drop_commands)
        return loaded if isinstance(loaded, Exception) else reply

    def send(self, calls: bytes) -> None:
        """Send several calls at once. All their replies are to be read before anything else is asked."""
        self._send(calls)

    def read_replies(self, number: int, deadline_at: float | None) -> list[Any]:
        """So many replies to what was sent, which may be exceptions."""
        return [self._reply(deadline_at) for _ in range(number)]

    def close(self) -> None:
        """Close it; where it is a parent process's, only our hold on it."""
        self._redis_connection.disconnect()

    def _reply(self, deadline_at: float | None) -> Any:
        while (reply := self._reader.gets()) is _MORE:
            if deadline_at is not None:
                self._sock.settimeout(max(deadline_at - monotonic(), LATE_REPLY_GRACE))
            try:
                size = self._receive(self._buffer)
            except TimeoutError as error:
                size = self._receive_late(error)
            self._feed(size)
        self._sock.settimeout(self._timeout)
        return reply

    def _receive_late(self, error: TimeoutError) -> int:
        """Time is up; but a thread that waits for its turn to run has not been waiting for Redis."""
        if not self._has_arrived(0):
            raise error
        self._sock.settimeout(LATE_REPLY_GRACE)
        size: int = self._receive(self._buffer)
        self._sock.settimeout(self._timeout)
        return size

    def _feed(self, size: int) -> None:
        if not size:
            raise RedisConnectionError("Connection closed by server.")
        self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # any buffer will do


def _arrival_check(redis_connection: Any) -> Callable[[int], object]:
    """A function that tells whether something has arrived, be it the end; without waiting if it is given 0."""
    if not hasattr(select, "poll"):  # Windows, and what green threads take away
        can_read: Callable[[int], object] = redis_connection.can_read
        return can_read
    poll = select.poll()
    poll.register(redis_connection._sock, select.POLLIN)
    return poll.poll


def connect(pool: ClientPool, seconds: float | None, timeout: float | None) -> Connection:
    """A new connection like those of this pool. The other arguments: see `options_of` and `Connection`."""
    redis_connection: Any = pool.connection_class(**options_of(pool, seconds))
    redis_connection.retry = Retry(NoBackoff(), 0)  # the deadline of a decision allows no second try
    share_tls_context(pool, redis_connection)
    errors = HandshakeErrors(redis_connection)
    try:
        redis_connection.connect()
    except RedisError as error:
        redis_connection.disconnect()
        raise errors.stop() or error from error
    except BaseException:
        redis_connection.disconnect()
        raise
    errors.stop()
    return Connection(redis_connection, timeout)
