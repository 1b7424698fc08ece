"""What a process knows by itself: units in hand, callers seen lately, remembered rejections, and usage to send.

One `LocalCounters` serves all threads and event loops of a process. `engine` decides by it, and keeps it up to date.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from math import inf
from threading import Lock, Thread
from typing import Any, Final
from weakref import WeakSet

from ..base import Charge, Verdict, Version
from ..call import NO_CHARGES, Answer
from ..memory import MemoryEngine
from ..usage import UsageBuffer, field_of, name_of
from .prefetch import MAX_RETURNED, Hands, terms_of
from .rejections import RejectionCache

#: Seconds between two looks of the thread that gives back what an idle process has in hand.
LOOK_SECONDS: Final = 0.25

#: For how many intervals a caller counts as seen who has come twice in one.
KEPT_INTERVALS: Final = 8

#: The local counters of this process.
_ALL: Final[WeakSet[LocalCounters]] = WeakSet()


class VersionState:
    """When to ask the engine for the version of the rules, to notice new rules.

    interval: seconds after which it is asked in any case. Times are monotonic seconds.
    """

    def __init__(self, interval: float) -> None:
        self._interval, self._due_at = interval, -inf
        #: The latest version that the engine has confirmed.
        self._version: int | Version | None = None

    def is_current(self, version: int | Version | None, now: float) -> bool:
        """Return whether the engine has recently confirmed this version; `None` = no version is needed."""
        return version is None or (now < self._due_at and (version is self._version or version == self._version))

    def confirm(self, version: int | Version | None, now: float, *, begins: bool = False) -> None:
        """Record that the engine was called with this version at `now`, and it was current.

        begins: a call begins that will tell. Unless the version is another, no second call is made for it.
        """
        if version is not None and (not begins or version == self._version):
            self._version, self._due_at = version, max(now + self._interval, self._due_at)


class LocalCounters:
    """What one process decides by, without the engine.

    denial_memory: maximum seconds for which a rejection is remembered; 0 = not at all. ask_interval: seconds after
    which the engine is called in any case, to notice new rules. max_counters: maximum number of each: counters with
    units in hand, callers seen, rejections. clock: monotonic seconds; with another than the default, no thread gives
    back what is in hand. memory: decides what is purely local. usage_buffer: usage that the engine has not counted.
    """

    def __init__(
        self,
        denial_memory: float = 0.0,
        ask_interval: float = 1.0,
        max_counters: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        memory: MemoryEngine | None = None,
        usage_buffer: UsageBuffer | None = None,
    ) -> None:
        self._denial_memory, self._ask_interval = denial_memory, ask_interval
        self.memory = memory or MemoryEngine(max_counters=max_counters, counts_usage=False)
        self.usage = UsageBuffer(clock=clock) if usage_buffer is None else usage_buffer
        self.max_counters, self.now = max_counters, clock
        self.hands = Hands(max_counters)
        #: The engine for threads to which units are given back.
        self.engine: Any = None
        self.clear()
        _ALL.add(self)

    def clear(self) -> None:
        """Drop everything, also units in hand: in a forked process they belong to the parent."""
        self.lock = Lock()
        self.memory = self.memory.fresh_copy()
        self.hands = Hands(self.max_counters, self.hands.shard_of)
        #: The partitions of callers of rules with units in advance, and until when they "come again".
        self.seen: dict[str, float] = {}
        self.rejections = RejectionCache(self._denial_memory, self.max_counters)
        self.version_state = VersionState(self._ask_interval)
        #: Gives back what is in hand once the process is idle.
        self.thread: Thread | None = None

    def count(self, answer: Answer, so_far: str = "") -> None:
        """Count a call that was decided here. so_far: how its request was counted, if not as its template says."""
        template = answer.charges.template
        if template.is_counted:
            counted = terms_of(template).counted
            if so_far or not answer.is_local or any(answer.states.waits):
                counted = name_of(field_of(answer, so_far=so_far or template.so_far), answer)
            self.usage.add(answer.states.at_us // 60_000_000, counted, waits=True)

    def refund(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Refund what this process can. Return the other verdicts, which the engine must refund."""
        verdicts = [*verdicts]
        self.memory.refund([verdict for verdict in verdicts if verdict.charge.is_local])
        with self.lock:
            now = self.now()
            theirs = [verdict for verdict in verdicts if not verdict.charge.is_local]
            return [verdict for verdict in theirs if not self.hands.refund(verdict, now)]

    def forget(self, charges: Iterable[Charge]) -> None:
        """Drop what is known about these counters."""
        charges = list(charges)
        with self.lock:
            for charge in charges:
                self.hands.forget(charge.key + charge.limit.tag)
                self.rejections.forget(charge.key + charge.limit.tag)
        self.memory.reset(charges)

    def give_back(self, now: float) -> None:
        """Give back what nobody has asked for of late, and send usage that is due. Raises as the engine does.

        now: inf = all. Units that cannot be given back stay charged.
        """
        with self.lock:
            receipts = self.hands.idle(now)
        for start in range(0, len(receipts), MAX_RETURNED):
            self.engine.refund(receipts[start : start + MAX_RETURNED])
        while now >= self.usage.due_at and (counts := self.usage.lease()):
            with self.usage.sending(counts):
                self.engine.check(NO_CHARGES, counts=counts)

    def watch(self) -> None:
        """Let a thread give back what is in hand once the process is idle. Call it under the lock."""
        if self.thread is None and self.now is time.monotonic and self.engine is not None:
            self.thread = Thread(target=self._give_back_when_idle, name="ratelimiter-units", daemon=True)
            try:
                self.thread.start()
            except RuntimeError:  # there can be no more threads, or the process ends
                self.thread = None

    def _give_back_when_idle(self) -> None:
        me = self.thread
        while me is self.thread:
            time.sleep(LOOK_SECONDS)
            try:
                self.give_back(self.now())
                is_over = not self.hands.held and self.usage.is_empty
            except Exception:  # the engine is lost
                is_over = True
                with self.lock:
                    self.hands.lose()
            with self.lock:
                if is_over and me is self.thread:
                    self.thread = None


def _forget_in_child() -> None:
    for counters in _ALL:
        counters.clear()


os.register_at_fork(after_in_child=_forget_in_child)
