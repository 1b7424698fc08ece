"""Circuit breaker: when a server is not asked any more, and when it is asked again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

logger = logging.getLogger("django_ratelimiter")

#: So many failures in a row, and a server is not asked any more.
MAX_FAILURES: Final = 3
#: Seconds until it is probed, at most; each further probe waits twice as long.
FIRST_WAIT, MAX_WAIT = 0.1, 5.0

_recovery_listeners: list[Callable[[], None]] = []
_state_listeners: list[Callable[[], None]] = []

#: Every breaker of this process that is not retired, by its id.
_breakers: Final[WeakValueDictionary[int, CircuitBreaker]] = WeakValueDictionary()


def on_recovered(listener: Callable[[], None]) -> None:
    """Call this whenever a server may be asked again, from whatever thread finds out; once per function."""
    if listener not in _recovery_listeners:
        _recovery_listeners.append(listener)


def on_state_change(listener: Callable[[], None]) -> None:
    """Call this whenever a breaker has opened or closed, or one that is open is retired; once per function."""
    if listener not in _state_listeners:
        _state_listeners.append(listener)


def open_breakers() -> int:
    """How many servers this process does not ask at present; one that event loops ask as well may count for each."""
    return sum(breaker is not None and breaker.is_open for breaker in [known() for known in _breakers.valuerefs()])


class CircuitBreaker:
    """Whether a server is to be asked: not after MAX_FAILURES failures in a row, until a probe has succeeded.

    Probes are made in the background, so that no request waits for a server that is away. clock: monotonic seconds.
    chance: a number from 0 to 1, so that processes do not all probe at once.
    is_open: the server is not to be asked. failures: in a row, so far.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random
    ) -> None:
        self.is_open = False
        self.failures = 0
        self._clock, self._chance = clock, chance
        self._lock = Lock()
        self._probes = 0
        self._due_at = self._closed_at = float("-inf")
        self._cause: Exception | None = None
        _breakers[id(self)] = self

    def fail(self, error: Exception) -> bool:
        """Note that a call has failed. Whether that was one too many, so that probing has to begin."""
        with self._lock:
            self.failures += 1
            self._cause = error
            if self.is_open or self.failures < MAX_FAILURES:
                return False
            self.is_open = True
            if self._clock() - self._closed_at > MAX_WAIT:
                self._probes = 0  # else it comes and goes: the waits go on growing
            self._put_off()
        logger.warning("Redis is not called until it answers again: %s", error)
        _notify_state_change()
        return True

    def succeed(self) -> None:
        """Note that a call has been answered."""
        self.failures = 0

    def fail_probe(self, error: Exception) -> None:
        """Note that a probe has failed."""
        with self._lock:
            self._cause = error
            if self.is_open:
                self._put_off()

    def next_probe_in(self) -> float:
        """Seconds until the next probe is due; 0 = it is."""
        return max(self._due_at - self._clock(), 0.0)

    def close(self) -> None:
        """Note that a probe has succeeded: the server is asked again."""
        with self._lock:
            if not self.is_open:
                return
            self._closed_at, self.failures = self._clock(), 0
        for listener in _recovery_listeners:  # before anybody asks
            listener()
        self.is_open = False
        logger.warning("Redis is called again.")
        _notify_state_change()

    def retire(self) -> None:
        """Note that nobody will want to ask the server any more."""
        if _breakers.pop(id(self), None) is not None and self.is_open:
            _notify_state_change()

    def reason(self) -> str:
        """Why it is open, for an error's text."""
        return f"Redis is not called at present: {self._cause}"

    def _put_off(self) -> None:
        wait = min(FIRST_WAIT * 2**self._probes, MAX_WAIT)
        self._probes = min(self._probes + 1, 10)
        self._due_at = self._clock() + wait * (1 + self._chance()) / 2


def _notify_state_change() -> None:
    for listener in _state_listeners:
        try:
            listener()
        except Exception:  # whatever is wrong there must not keep us from probing
            logger.exception("A listener for the state of circuit breakers has failed.")
