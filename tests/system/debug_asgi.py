"""The site for ASGI servers with an event loop that complains: of queries, of blocking calls, of long callbacks.

What it prints with COMPLAINT in front is a complaint. A callback that asyncio's debug mode calls slow is complained of
if the time was its own: on a busy machine it may also have waited for a processor, or for a thread to let go of Python,
and the garbage collector runs in whatever callback comes its way. What a callback could wait for itself is complained
of as such, however long it took.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from django.core.asgi import get_asgi_application
from django.db.backends.base.base import BaseDatabaseWrapper
from django.urls import get_resolver

#: What each complaint begins with.
COMPLAINT = "COMPLAINT"
SLOW_SECONDS = 0.02


def _guard(owner: Any, name: str, blocks: Callable[..., bool] = lambda *_given, **_options: True) -> None:
    """Complain whenever this is called on an event loop and blocks it."""
    function = getattr(owner, name)

    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _is_on_event_loop() and blocks(*args, **kwargs):
            print(COMPLAINT, name, "is called on the event loop", "".join(traceback.format_stack(limit=12)), flush=True)
        return function(*args, **kwargs)

    setattr(owner, name, guarded)


def _is_on_event_loop() -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


class _SlowCallbacks(logging.Handler):
    """Complains of callbacks that asyncio calls slow, if they took as much of the processor themselves."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._took = self._collecting = 0.0
        run = asyncio.Handle._run  # type: ignore[attr-defined]
        loop = threading.get_ident()

        def timed(handle: asyncio.Handle) -> None:
            self._collecting, began = 0.0, time.thread_time()
            run(handle)
            self._took = time.thread_time() - began - self._collecting

        def collects(phase: str, _info: dict[str, int]) -> None:
            if threading.get_ident() == loop:  # a start takes its time away again with the stop
                self._collecting += time.thread_time() * (1 if phase == "stop" else -1)

        asyncio.Handle._run = timed  # type: ignore[attr-defined]
        gc.callbacks.append(collects)

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith("Executing") or self._took > SLOW_SECONDS:
            print(COMPLAINT, f"{self._took:.3f} s", record.getMessage(), flush=True)


def _watch_this_loop() -> None:
    loop = asyncio.get_running_loop()
    # Half the time would go into noting where each handle and each future was made.
    asyncio.constants.DEBUG_STACK_DEPTH = sys.tracebacklimit = 1  # type: ignore[attr-defined]
    loop.set_debug(True)
    loop.slow_callback_duration = SLOW_SECONDS
    logger = logging.getLogger("asyncio")
    logger.addHandler(_SlowCallbacks())
    logger.propagate = False
    for name in ("ensure_connection", "cursor"):
        _guard(BaseDatabaseWrapper, name)
    for name in ("connect", "recv", "recv_into", "send", "sendall"):
        _guard(socket.socket, name, lambda sock, *_given, **_options: sock.gettimeout() != 0)
    _guard(time, "sleep")
    _guard(Future, "result", lambda future, *_given, **_options: not future.done())
    gc.collect()
    gc.freeze()  # what was made at the start is not to be looked through again and again


_site = get_asgi_application()
_watched = False


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The site, watched from the second request on: with the first one Django itself gets ready."""
    global _watched
    if scope["path"] != "/static/" and not _watched:
        _watched = True
        assert get_resolver().url_patterns
        _watch_this_loop()
    await _site(scope, receive, send)
