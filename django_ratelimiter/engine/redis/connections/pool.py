"""The connections of one process to one server, and the thread that sees to them when something is amiss."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Condition, Thread
from time import monotonic
from typing import Any, Final

from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as TooLate

from ...breaker import Breaker
from .connection import Forgetting, Wire
from .faults import lost, raise_if_broken
from .greeting import Greeting

#: Seconds for each step of connecting in the background, and for each reply there that decides nothing.
CONNECT_SECONDS: Final = 2.0


class Crowded(TooLate):
    """There was no connection in time, but the server has just greeted or answered others: it does not fail."""


class Stock:
    """Idle connections, and a thread that makes more while calls wait for them, and probes while the breaker is open.

    While all is well there is no such thread, for each call finds an idle connection. One is made in the background
    rather than by the call: looking up a name, greeting and authenticating have no common deadline, and what takes
    longer than the call may wait is finished for the next one.

    make: connects, waiting so many seconds for each step at most. greeting: what is said on each new connection.
    probe: a call that only a server that can decide answers without an error, and the kind of its reply. deadline:
    seconds for a call; `None` = the client's own timeouts hold, calls connect themselves, and the breaker never opens.
    """

    def __init__(
        self,
        make: Callable[[float | None], Wire],
        greeting: Greeting,
        probe: Callable[[], tuple[bytes, type]],
        deadline: float | None,
    ) -> None:
        self.idle: deque[Wire] = deque()
        self.breaker = Breaker()
        self.forgetting = Forgetting(greeting.forgetting)
        self.pid = os.getpid()
        self.waiting = 0
        self._make, self._greeting, self._probe, self._deadline = make, greeting, probe, deadline
        self._changed = Condition()
        self._thread: Thread | None = None
        self._stopped = False
        self._round_trip = float("inf")
        self._made = self._failed = 0
        self._error: Exception = TooLate("not tried yet")

    def take(self) -> Wire | None:
        """An idle connection that is sound."""
        while True:
            try:
                wire = self.idle.pop()
            except IndexError:
                return None
            try:
                if wire.is_sound():
                    return wire
            except (RedisError, OSError):
                pass
            wire.hang_up()  # closed by the server, or with something unread on it

    def wait(self, until: float | None) -> Wire:
        """A connection, as soon as there is one. Raises what connecting has raised, or TimeoutError at `until`."""
        if until is None or self._deadline is None:
            return self._make(None)
        with self._changed:
            self.waiting += 1
            made, failed = self._made, self._failed
            try:
                self._see_to_thread()
                while (left := until - monotonic()) > 0:
                    if (wire := self.take()) is not None:
                        if left >= min(self._round_trip, self._deadline / 2):
                            return wire
                        self.give_back(wire)  # too late for a reply: it is better kept for others
                        break
                    if self._failed != failed:
                        raise lost(self._error)
                    self._changed.wait(left)
                late = TooLate if self._made == made else Crowded
                raise late("No connection within the deadline; it is being made for later calls.")
            finally:
                self.waiting -= 1

    def give_back(self, wire: Wire) -> None:
        """Keep a connection whose call has been answered for the next one."""
        self.idle.append(wire)
        if self.waiting:
            with self._changed:
                self._changed.notify()

    def fail(self, error: Exception) -> None:
        """Note that a call has failed; after some, unless there were too many at once, the thread begins to probe.

        What is idle then may be as lost, as where a firewall has forgotten what was quiet for long.
        """
        if self._deadline is not None and not isinstance(error, Crowded) and self.breaker.fail(lost(error)):
            self.hang_up()
            self.see_to_probing()

    def see_to_probing(self) -> None:
        """Have the thread begin, unless it has; where there was none to be had, there may be one now."""
        if self._thread is None:
            with self._changed, suppress(RedisError):
                self._see_to_thread()

    def stop(self) -> None:
        """End the thread, and close what is idle."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.hang_up()

    def hang_up(self) -> None:
        """Close what is idle; where it is a parent process's, only our hold on it."""
        with suppress(IndexError):
            while True:
                self.idle.pop().hang_up()

    def _see_to_thread(self) -> None:
        if (self._thread is None or not self._thread.is_alive()) and not self._stopped:
            thread = Thread(target=self._run, name="ratelimiter-redis", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads to be had, or the process is about to end
                raise TooLate(f"no thread to connect in: {error}") from error
            self._thread = thread

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                task()
            except Exception as error:  # anything at all: a resolver, a provider of credentials, TLS
                self.breaker.fail_probe(lost(error))
                with self._changed:
                    self._failed += 1
                    self._error = error
                    self._changed.notify_all()

    def _next_task(self) -> Callable[[], None] | None:
        """What to do now; waits until a probe is due. `None` = nothing, and the thread is gone."""
        with self._changed:
            while not self._stopped:
                if not self.breaker.is_open:
                    if self.waiting > len(self.idle):
                        return self._connect
                    break
                if not (wait := self.breaker.next_probe_in()):
                    return self._connect
                self._changed.wait(wait)
            self._thread = None
            return None

    def _connect(self) -> None:
        wire = self._make(CONNECT_SECONDS)
        try:
            self._greet(wire)
            if self.breaker.is_open:
                self._try_out(wire)
                self.breaker.close()
        except BaseException:
            wire.hang_up()
            raise
        if self._stopped:
            wire.hang_up()
        else:
            self.idle.append(wire)
            with self._changed:
                self._made += 1
                self._changed.notify()

    def _greet(self, wire: Wire) -> None:
        steps = self._greeting.steps()
        turn: Any = partial(next, steps)
        with suppress(StopIteration):
            while True:
                burst = turn()
                began = monotonic()
                wire.send(burst.packed)
                turn = partial(steps.send, wire.replies(burst.replies, began + CONNECT_SECONDS))
                self._round_trip = min(self._round_trip, monotonic() - began)

    def _try_out(self, wire: Wire) -> None:
        """As a request asks: what counts is when the reply arrives, not when our thread gets its turn."""
        call, kind = self._probe()
        until = monotonic() + (self._deadline or CONNECT_SECONDS)
        reply = wire.ask(call, until, whole=False)
        if isinstance(reply, NoScriptError):
            reply = wire.ask_loading(call, until, self.forgetting)
        raise_if_broken(reply, kind)
