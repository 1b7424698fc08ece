"""How connections are encrypted: what redis-py reads from disk for each connection anew is kept for a while.

To read a system's certificates takes longer than a decision may wait, 50 to 70 ms with OpenSSL 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, proxy

#: Seconds after which certificates are read anew, for they are exchanged on disk before they expire.
KEPT_SECONDS: Final = 60.0


class Contexts:
    """The latest context of each pool. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: WeakKeyDictionary[Any, tuple[Any, float]] = WeakKeyDictionary()

    def of(self, pool: Any) -> Any:
        """What was kept for connections of this pool, if it is new enough; else `None`."""
        context, until = self._kept.get(pool, (None, 0.0))
        return context if self._clock() < until else None

    def keep(self, pool: Any, context: Any) -> None:
        """Keep what has just been made."""
        self._kept[pool] = context, self._clock() + KEPT_SECONDS

    def forget(self, pool: Any) -> None:
        """Read the certificates anew for the next connection."""
        self._kept.pop(pool, None)


#: Of the pools of threads.
contexts: Final = Contexts()


def share(pool: Any, link: Any) -> None:
    """Let a connection that is not connected yet use the context of an earlier one. For threads.

    Where OCSP is asked there is more to do, and redis-py does it.
    """
    if not hasattr(link, "_wrap_socket_with_ssl") or link.ssl_validate_ocsp or link.ssl_validate_ocsp_stapled:
        return
    make, weak = type(link)._wrap_socket_with_ssl, proxy(link)

    def wrap(sock: Any) -> Any:
        context = contexts.of(pool)
        if context is None:
            wrapped = make(weak, sock)
            contexts.keep(pool, wrapped.context)
            return wrapped
        try:
            return context.wrap_socket(sock, server_hostname=weak.host)
        except OSError:
            contexts.forget(pool)  # the server's certificate may be another now
            raise

    link._wrap_socket_with_ssl = wrap
