"""One connection: opened by redis-py, and then used directly.

redis-py takes longer to send and to read than the server does, and has no deadline for a whole call.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 (the first lookup of a host would import it, within a deadline)
import select
import socket
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, proxy

from hiredis import Reader
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool as ClientPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError
from redis.retry import Retry

from ..packing import command
from ..scripts import CHECK
from .faults import HandshakeErrors

#: Pool options that its own connections need, but not ours: announcements that servers send to clients that asked for
#: them would lengthen our timeouts, and arrive instead of a reply.
_NOT_OURS: Final = ("maint", "orig_", "oss_cluster_maint", "retry", "health_check_interval", "protocol")

#: Without it, a recent redis-py searches its version on disk for each connection: half of the time to connect.
_DRIVER: Final = (
    {"driver_info": import_module("redis.driver_info").DriverInfo()} if find_spec("redis.driver_info") else {}
)

#: Seconds for the rest of a reply if a part has arrived when the time is up.
LATE_REPLY_GRACE: Final = 0.001

MORE: Final = object()  # of a reader that waits for the rest of a reply


class Pipeline(NamedTuple):
    """Calls that are sent at once, and the number of their replies."""

    packed: bytes
    replies: int


#: Minimum seconds between two deletions of the version on a server without the script.
VERSION_DROP_INTERVAL: Final = 1.0


class VersionDrop:
    """Deletes the version on a server without the script, but not the one that is published because of that.

    For example, a proxy that sends each call to another server needs the script each time. If the version were deleted
    each time, no call would ever find one.

    calls: the commands that delete it. clock: seconds.
    """

    __slots__ = ("_calls", "_not_before", "clock")

    def __init__(self, calls: Pipeline, clock: Callable[[], float] = monotonic) -> None:
        self._calls, self.clock = calls, clock
        self._not_before = -inf

    def due_commands(self) -> Pipeline:
        """Return the commands to send before the script is loaded."""
        return Pipeline(b"", 0) if self.clock() < self._not_before else self._calls

    def mark_sent(self, sent: Pipeline) -> None:
        """Record that the server has replied to them: only then is the version deleted."""
        if sent is self._calls:
            self._not_before = self.clock() + VERSION_DROP_INTERVAL


LOAD: Final = command("SCRIPT", "LOAD", CHECK)
PING: Final = command("PING")


def options_of(pool: Any, seconds: float | None) -> dict[str, Any]:
    """Return the arguments of one connection like those of this pool.

    seconds: for each step of connecting; `None` = as in the pool.
    """
    given = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_NOT_OURS)}
    given = ({} if {"lib_name", "lib_version"} & given.keys() else _DRIVER) | given
    given["protocol"] = 2  # RESP2: replies are the only data that arrives
    if seconds is not None:
        given["socket_timeout"] = seconds
        if "path" not in given:
            given["socket_connect_timeout"] = seconds
    return given


def reader_for(redis_connection: Any) -> Reader:
    """Return a reader like redis-py's own parser of this connection; it returns errors as exceptions."""
    parse: Callable[[str], Exception] = redis_connection._parser.parse_error

    def error_of(text: str) -> Exception:
        try:
            return parse(text)
        except Exception as error:  # an invalid address
            return InvalidResponse(f"An error that no Redis sends, {text!r}: {error}")

    return Reader(protocolError=InvalidResponse, replyError=error_of, notEnoughData=MORE)


class Connection:
    """A connection for one thread at a time.

    redis_connection: redis-py's, which is open. timeout: seconds for a call; `None` = as set by
    redis-py. generation: see Server. on_close: called with it.
    After an exception (OSError, RedisError) it cannot be used: close it.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_on_close",
        "_reader",
        "_receive",
        "_redis_connection",
        "_sock",
        "_timeout",
        "generation",
        "has_arrived",
        "has_more",
        "send",
    )

    def __init__(
        self, redis_connection: Any, timeout: float | None, generation: int, on_close: Callable[[Connection], None]
    ) -> None:
        self.generation, self._on_close = generation, on_close
        self._redis_connection = redis_connection
        self._sock: socket.socket = redis_connection._sock
        if timeout is not None:
            self._sock.settimeout(timeout)
        self._timeout = self._sock.gettimeout()
        self._reader = reader_for(redis_connection)
        #: Returns whether a part of a reply was received and not read.
        self.has_more: Callable[[], bool] = self._reader.has_data
        self._buffer = bytearray(4_096)
        #: Sends a call, or several at once. All replies must be read before the next call.
        self.send: Callable[[bytes], None] = self._sock.sendall
        self._receive = self._sock.recv_into
        #: Returns whether data or the end of the connection has arrived. Argument: milliseconds to wait.
        self.has_arrived = _arrival_check(redis_connection)

    def is_usable(self) -> bool:
        """True if a call may be sent: the server has not disconnected, and there is no unread data."""
        return not self.has_arrived(0) and not self.has_more()

    def call(self, call: bytes, deadline_at: float | None, full_timeout: bool) -> Any:
        """Send one call and return its reply, which may be an exception.

        deadline_at: monotonic seconds; `None` = the timeout applies to each part of the reply. full_timeout: the call
        has the whole timeout left.
        """
        self.send(call)
        if full_timeout:
            try:
                size = self._receive(self._buffer)
            except TimeoutError as error:
                size = self._receive_late(error)
            if not size:
                raise RedisConnectionError("Connection closed by server.")
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # any buffer will do
            reply = self._reader.gets()
            if reply is not MORE:
                return reply
        return self._reply(deadline_at)

    def call_after_script_load(self, call: bytes, deadline_at: float | None, version_drop: VersionDrop) -> Any:
        """Send a call to a server that has lost the script, and load the script, in one round trip."""
        drop_commands = version_drop.due_commands()
        self.send(drop_commands.packed + LOAD + call)
        loaded, reply = self.read_replies(drop_commands.replies + 2, deadline_at)[-2:]
        version_drop.mark_sent(drop_commands)
        return loaded if isinstance(loaded, Exception) else reply

    def read_replies(self, number: int, deadline_at: float | None) -> list[Any]:
        """Return this number of replies, which may be exceptions."""
        return [self._reply(deadline_at) for _ in range(number)]

    def close(self) -> None:
        """Close it; in a forked process only our copy, because it belongs to the parent."""
        self._on_close(self)
        self._redis_connection.disconnect()

    def _reply(self, deadline_at: float | None) -> Any:
        while (reply := self._reader.gets()) is MORE:
            if deadline_at is not None:
                self._sock.settimeout(max(deadline_at - monotonic(), LATE_REPLY_GRACE))
            try:
                size = self._receive(self._buffer)
            except TimeoutError as error:
                size = self._receive_late(error)
            if not size:
                raise RedisConnectionError("Connection closed by server.")
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # any buffer will do
        self._sock.settimeout(self._timeout)
        return reply

    def _receive_late(self, error: TimeoutError) -> int:
        """Read once more after a timeout: the reply may have arrived while this thread waited for the GIL."""
        if not self.has_arrived(0):
            raise error
        self._sock.settimeout(LATE_REPLY_GRACE)
        size: int = self._receive(self._buffer)
        self._sock.settimeout(self._timeout)
        return size


def _arrival_check(redis_connection: Any) -> Callable[[int], object]:
    """Return a function that tests whether data or the end has arrived. Argument: milliseconds to wait."""
    if not hasattr(select, "poll"):  # Windows, and green threads

        def has_arrived(milliseconds: int) -> object:
            try:
                return redis_connection.can_read(milliseconds / 1_000)
            except (RedisError, OSError):
                return True  # the end

        return has_arrived
    poll = select.poll()
    poll.register(redis_connection._sock, select.POLLIN)
    return poll.poll


#: Seconds after which certificates are read again: they are replaced on disk before they expire.
MAX_AGE: Final = 60.0


class TLSContextCache:
    """The latest TLS context of each pool. clock: monotonic seconds.

    redis-py would read the certificates from disk for each connection. Those of a system take longer than a decision
    may wait: 50 to 70 ms with OpenSSL 3.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._contexts: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()

    def get(self, pool: Any) -> Any:
        """Return the cached context for this pool, if it is not too old; else `None`."""
        context, until = self._contexts.get(pool, (None, 0.0))
        return context if self._clock() < until else None

    def put(self, pool: Any, context: Any) -> None:
        """Store a new context."""
        self._contexts[pool] = context, self._clock() + MAX_AGE

    def discard(self, pool: Any) -> None:
        """Drop the context, so that the next connection reads the certificates again."""
        self._contexts.pop(pool, None)


#: For the pools of threads and of event loops.
contexts: Final = TLSContextCache()


def share_tls_context(pool: Any, redis_connection: Any) -> None:
    """Use the context of an earlier connection for one that is not open yet. For threads.

    With OCSP there is more to do, so redis-py does it.
    """
    if (
        not hasattr(redis_connection, "_wrap_socket_with_ssl")
        or redis_connection.ssl_validate_ocsp
        or redis_connection.ssl_validate_ocsp_stapled
    ):
        return
    make, weak = type(redis_connection)._wrap_socket_with_ssl, proxy(redis_connection)

    def wrap(sock: Any) -> Any:
        context = contexts.get(pool)
        if context is None:
            wrapped = make(weak, sock)
            contexts.put(pool, wrapped.context)
            return wrapped
        try:
            return context.wrap_socket(sock, server_hostname=weak.host)
        except OSError:
            contexts.discard(pool)  # the server's certificate may have changed
            raise

    redis_connection._wrap_socket_with_ssl = wrap


def connect(
    pool: ClientPool,
    seconds: float | None,
    timeout: float | None,
    generation: int,
    on_close: Callable[[Connection], None],
) -> Connection:
    """Return a new connection like those of this pool. Other arguments: see `options_of` and `Connection`."""
    redis_connection: Any = pool.connection_class(**options_of(pool, seconds))
    redis_connection.retry = Retry(NoBackoff(), 0)  # the deadline of a decision leaves no time for another try
    share_tls_context(pool, redis_connection)
    errors = HandshakeErrors(redis_connection)
    try:
        redis_connection.connect()
    except BaseException as error:
        redis_connection.disconnect()
        if isinstance(error, RedisError):
            raise errors.stop() or error from error
        raise
    errors.stop()
    return Connection(redis_connection, timeout, generation, on_close)
