"""Circuit breaker: when to stop calling a server, and when to call it again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from ..logs import logger

#: After this many failures in a row, the server is not called any more.
MAX_FAILURES: Final = 3
#: Maximum seconds until the first probe; each further wait is twice as long.
FIRST_WAIT, MAX_WAIT = 0.1, 5.0

_recovery_listeners: list[Callable[[], None]] = []
_state_listeners: list[Callable[[], None]] = []

#: All breakers of this process that are not retired, by their id.
_breakers: Final[WeakValueDictionary[int, CircuitBreaker]] = WeakValueDictionary()

#: When one of them has opened or closed last, in seconds since the Unix epoch; `None` = never.
changed_at: float | None = None


def on_recovered(listener: Callable[[], None]) -> None:
    """Call `listener` whenever a breaker has closed, in any thread. Each function is registered once."""
    if listener not in _recovery_listeners:
        _recovery_listeners.append(listener)


def on_state_change(listener: Callable[[], None]) -> None:
    """Call `listener` when a breaker opens or closes, or an open one is retired. Each function is registered once."""
    if listener not in _state_listeners:
        _state_listeners.append(listener)


def open_breakers() -> int:
    """Return the number of servers that this process does not call at present."""
    return sum(breaker is not None and breaker.is_open for breaker in [known() for known in _breakers.valuerefs()])


class CircuitBreaker:
    """Whether to call a server: not after MAX_FAILURES failures in a row, until a probe succeeds.

    Probes run in the background, so that no request waits for an unreachable server: in a thread or on an event loop,
    whichever claims the next one. clock: monotonic seconds.
    chance: returns a number from 0 to 1, so that processes do not all probe at once.
    wake: called after each probe, as others that wait for the next one must not wait until the claim expires.
    is_open: do not call the server. failures: in a row, so far.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_open: bool = False
        self.is_retired: bool = False
        self.failures: int = 0
        self._clock, self._chance, self._wake = clock, chance, wake
        self._lock = Lock()
        self._probes = 0
        self._due_at = self._closed_at = float("-inf")
        self._cause: Exception | None = None
        _breakers[id(self)] = self

    def fail(self, error: Exception) -> bool:
        """Record a failed call. Returns whether the breaker has opened now, so that probing must begin."""
        with self._lock:
            self.failures += 1
            self._cause = error
            if self.is_open or self.failures < MAX_FAILURES:
                return False
            self.is_open = True
            if self._clock() - self._closed_at > MAX_WAIT:
                self._probes = 0  # else the server is unstable, and the waits keep growing
            self._put_off()
        logger.warning("Redis is not called until it answers again: %s", error)
        _notify_state_change()
        return True

    def succeed(self) -> None:
        """Record a successful call."""
        self.failures = 0

    def fail_probe(self, error: Exception) -> None:
        """Record a failed probe."""
        with self._lock:
            self._cause = error
            if self.is_open:
                self._put_off()
        self._wake()

    def claim_probe(self) -> bool:
        """Return whether the caller must probe now. Nobody else does until it has failed, or MAX_WAIT has passed."""
        with self._lock:
            if not self.is_open or self.next_probe_in():
                return False
            self._due_at = self._clock() + MAX_WAIT
            return True

    def next_probe_in(self) -> float:
        """Return the seconds until the next probe; 0 = now."""
        return max(self._due_at - self._clock(), 0.0)

    def close(self) -> None:
        """Close the breaker after a successful probe: the server is called again."""
        with self._lock:
            if not self.is_open:
                return
            self._closed_at, self.failures = self._clock(), 0
        for listener in _recovery_listeners:  # before any call
            listener()
        self.is_open = False
        self._wake()
        logger.warning("Redis is called again.")
        _notify_state_change()

    def retire(self) -> None:
        """Remove the breaker: its server is not used any more, and event loops stop probing it."""
        self.is_retired = True
        if _breakers.pop(id(self), None) is not None and self.is_open:
            _notify_state_change()

    def reason(self) -> str:
        """The reason why it is open, for the text of an error."""
        return f"Redis is not called at present: {self._cause}"

    def _put_off(self) -> None:
        wait = min(FIRST_WAIT * 2**self._probes, MAX_WAIT)
        self._probes = min(self._probes + 1, 10)
        self._due_at = self._clock() + wait * (1 + self._chance()) / 2


def _notify_state_change() -> None:
    global changed_at
    changed_at = time.time()
    for listener in _state_listeners:
        try:
            listener()
        except Exception:  # an error in a listener must not stop the probes
            logger.exception("A listener for the state of circuit breakers has failed.")
