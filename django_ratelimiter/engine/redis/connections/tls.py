"""TLS of connections: caches the certificates, which redis-py would read from disk for each connection.

Reading a system's certificates takes longer than a decision may wait: 50 to 70 ms with OpenSSL 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, proxy

#: Seconds after which certificates are read again: they are replaced on disk before they expire.
MAX_AGE: Final = 60.0


class TLSContextCache:
    """The latest context of each pool. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
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


#: For the pools of threads.
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
