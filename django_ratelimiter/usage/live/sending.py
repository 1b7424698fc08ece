"""Threads that send what a process has noted to Redis, outside of the request path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from os import getpid
from threading import Lock, Thread
from time import sleep
from typing import Final

from ...engine.locks import freed_by_fork

logger = logging.getLogger("django_ratelimiter")

#: Seconds between two calls of Redis in a process.
SEND_SECONDS: Final = 1.0


class Sender:
    """Sends once a second, in a thread, as long as there is something to send.

    send: sends what waits. waits: returns whether something does. A forked process starts a thread of its own.
    """

    def __init__(self, send: Callable[[], object], waits: Callable[[], bool]) -> None:
        self._lock, self._sending_in = freed_by_fork(Lock()), 0
        self._send, self._waits = send, waits

    def start(self) -> None:
        """Start the thread, unless it runs. Call it after something was noted."""
        with self._lock:
            if self._sending_in == getpid():
                return
            self._sending_in = getpid()
        try:
            Thread(target=self._run, name="ratelimiter-live", daemon=True).start()
        except RuntimeError:  # no more threads available, or the process is ending
            self._sending_in = 0

    def _run(self) -> None:
        while True:
            try:
                self._send()
            except Exception:  # an exception must not be printed when the thread ends
                logger.exception("Names of callers were not recorded in Redis.")
            sleep(SEND_SECONDS)
            with self._lock:
                if not self._waits():
                    self._sending_in = 0
                    return
