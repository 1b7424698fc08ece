"""What a process decides by itself, and what it therefore owes the engine: approximate mode and denial memory.

One ledger serves all threads and event loops of a process. It asks nobody: `deciding` yields what is to be asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from threading import Lock
from typing import Final
from weakref import WeakSet

from ..base import Charge, Verdict, Version, check_units
from ..memory import MemoryEngine
from ..usage import SHADOW, Held, Unsent, field_of
from .counter import Budget, LocalVerdict
from .denials import Refusal, Refusals, refuses
from .sync import Question, Settlement, is_local, is_twice, is_unsent, peeked

#: Seconds for which a purely local budget is spent before its window is looked at again, and parts of that window.
LOCAL_INTERVAL, LOCAL_PARTS = 0.1, 50

#: Those of this process.
_ALL: Final[WeakSet[Ledger]] = WeakSet()


class Ledger:
    """Budgets and refusals of one process.

    denial_memory: seconds for which a refusal is remembered at most; 0 = none is. ask_interval: seconds after which
    the engine is asked, whatever is known here, so that new rules are heard of. most: counters to know of.
    clock: monotonic seconds. memory: counts what is purely local. unsent: usage that the engine is still to count.
    """

    def __init__(
        self,
        denial_memory: float = 0.0,
        ask_interval: float = 1.0,
        most: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
        memory: MemoryEngine | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        self._denial_memory, self._ask_interval = denial_memory, ask_interval
        self.memory = memory or MemoryEngine(most=most)
        self._unsent = Unsent() if unsent is None else unsent
        self.most, self._clock = most, clock
        self.forget()
        _ALL.add(self)

    def forget(self) -> None:
        """Know nothing any more, and owe nothing: in a new process, these are its parent's."""
        self._lock = Lock()
        self.memory = self.memory.anew()
        self.budgets: dict[str, Budget] = {}
        self.refusals = Refusals(self._denial_memory, self.most)
        self._tally: dict[tuple[int, str], int] = {}
        self._version: int | Version | None = None
        self._ask_at = self.sweep_at = float("-inf")

    def answer(
        self, charges: Sequence[Charge], version: int | Version | None, receipts: Iterable[Verdict]
    ) -> list[Verdict] | None:
        """The verdicts, if all of them are known here; `None` = somebody has to be asked."""
        now = self._clock()
        if version is not None and (now >= self._ask_at or (version is not self._version and version != self._version)):
            return None
        if len(charges) == 1:
            charge = charges[0]
            if charge.sync_interval is not None:
                verdict = self._admit(charge, now)
            else:
                verdict = None if receipts else self._refuse(charge, version, now)
            if verdict is not None:
                return [verdict]
        with self._lock:
            known: list[Budget | Refusal] = []
            refused = remembered = False
            for charge in charges:
                found = self._known(charge, version, now)
                if found is None:
                    return None
                known.append(found)
                if type(found) is Refusal:
                    remembered = True
                    refused = refused or found.refuses
                elif charge.gating and charge.cost > charge.limit.quota - found.used:  # type: ignore[union-attr]
                    refused = True
            if (remembered and not refused) or (refused and receipts) or (len(known) > 1 and is_twice(charges)):
                return None
            verdicts = [
                each.repeated(charge, now) if type(each) is Refusal else _settled(each, charge, now, refused)  # type: ignore[arg-type]
                for charge, each in zip(charges, known, strict=True)
            ]
            self._count(verdicts)
        return verdicts if known else None

    def _refuse(self, charge: Charge, version: int | Version | None, now: float) -> Verdict | None:
        """The other: a single charge that was refused just now."""
        with self._lock:
            refusal = self.refusals.find(charge, version, now)
            if refusal is None or not refusal.refuses or type(charge.cost) is not int:
                return None
            verdict = refusal.repeated(charge, now)
            if charge.usage is not None:
                key = verdict.at_us // 60_000_000, charge.usage + "\nd"
                self._tally[key] = self._tally.get(key, 0) + 1
            return verdict

    def _admit(self, charge: Charge, now: float) -> Verdict | None:
        """One of two things that have to be fast: a single charge that fits its budget. `None` = see further."""
        key, limit, cost, gating, label, _, _, _, interval, carried = charge
        if interval is None or type(cost) is not int or cost <= 0 or carried:
            return None
        with self._lock:
            budget = self.budgets.get(key + limit.tag)
            if budget is None or now >= budget.due_at or limit.quota > budget.at_most:
                return None
            left = limit.quota - budget.used - cost
            if left < 0 or budget.reset_at <= now:
                return None
            budget.used += cost
            budget.unsent += cost
            budget.spent_at = now
            if limit.quota > budget.widest:
                budget.widen(charge)
            at_us = budget.synced_us + int((now - budget.synced_at) * 1_000_000)
            soft = limit.soft_quota is not None and left < limit.terms.soft_floor
            if label is not None:
                field = (label if gating else SHADOW + label) + ("\ns" if soft else "\na")
                tally, minute = self._tally, at_us // 60_000_000
                tally[minute, field] = tally.get((minute, field), 0) + 1
            verdict = LocalVerdict(True, left, 0.0, budget.reset_at - now, 0.0, soft, at_us, charge, cost, at_us)
            verdict.budget, verdict.sent = budget, budget.sent
            return verdict

    def _known(self, charge: Charge, version: int | Version | None, now: float) -> Budget | Refusal | None:
        """What decides this charge here."""
        cost, limit = charge.cost, charge.limit
        if type(cost) is not int or cost < 0 or charge.carried:
            return None
        if charge.sync_interval is None:
            return self.refusals.find(charge, version, now)
        budget = self.budgets.get(charge.key + limit.tag)
        if budget is None or limit.quota > budget.at_most:
            return None
        fits = cost <= limit.quota - budget.used
        if now < budget.due_at:
            if fits or charge.sync_interval > 0 or budget.still_refuses(charge, now):
                return budget
        elif budget.asked_by is not None:  # another thread is asking, and what was known will do so long
            return budget
        return None

    def deciding(
        self, charges: Sequence[Charge], version: int | Version | None, receipts: Sequence[Verdict]
    ) -> Generator[Question, list[Verdict], list[Verdict]]:
        """The verdicts, asking the engine at most once. Raises what that raises; nothing is spent here then."""
        for charge in charges:
            check_units(charge)
        if is_twice(charges):
            raise ValueError("charges: the same key and limit stand twice in one call; add up their costs instead.")
        yield from self._telling(charges)
        call = Settlement(self, charges, version, receipts, self._clock())
        with self._lock:
            call.plan()
            question = call.question()
        replies = [] if question is None else (yield from self._asking(call, question))
        with self._lock:
            verdicts = call.settle(replies, self._clock())
            self._count(call.counted_here(verdicts))
        return verdicts

    def _telling(self, charges: Sequence[Charge]) -> Generator[Question, list[Verdict], None]:
        """Tell the engine first of what it has to hear with another limit than these charges'."""
        with self._lock:
            call = Settlement(self, (), None, (), self._clock())
            question = call.question(always=False) if call.take_wider(charges) else None
        if question is not None:
            yield from self._finishing(call, question)

    def _finishing(self, call: Settlement, question: Question) -> Generator[Question, list[Verdict], None]:
        replies = yield from self._asking(call, question)
        with self._lock:
            call.settle(replies, self._clock())

    def _asking(self, call: Settlement, question: Question) -> Generator[Question, list[Verdict], list[Verdict]]:
        try:
            replies = yield question
        except BaseException:
            with self._lock:
                call.abandon()
            self.counted(question.counts, done=False)
            raise
        self.counted(question.counts, done=True)
        return replies

    def owed(self) -> Generator[Question, list[Verdict], None]:
        """All that the engine is still to be told of, in as many calls as it takes."""
        while True:
            with self._lock:
                call = Settlement(self, (), None, (), self._clock())
                call.take_riders(due=False)
                question = call.question(always=False)
            if question is None:
                return
            yield from self._finishing(call, question)

    def now(self) -> float:
        """The time."""
        return self._clock()

    def remember(self, verdicts: Sequence[Verdict], version: int | Version | None, began: float) -> None:
        """Take the engine's answer to a call that began then: the version is in force, and a refusal is kept."""
        with self._lock:
            if version is not None:
                self.confirm(version, began)
            if any(map(refuses, verdicts)):
                self.refusals.keep(verdicts, version, self._clock())

    def is_current(self, version: int | Version, now: float) -> bool:
        """Whether the engine has confirmed this version not long ago."""
        return now < self._ask_at and version == self._version

    def claim(self, version: int | Version, now: float) -> None:
        """The version is being asked for, so that nobody else need."""
        if version == self._version:
            self._ask_at = max(self._ask_at, now + self._ask_interval)

    def confirm(self, version: int | Version, now: float) -> None:
        """The engine was asked with this version then, and found it to be in force."""
        self._version, self._ask_at = version, max(now + self._ask_interval, self._ask_at)

    def take_back(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Give back what these spent of budgets and the engine was not told of; the others."""
        others = []
        with self._lock:
            for verdict in verdicts:
                if isinstance(verdict, LocalVerdict) and is_unsent(verdict):
                    verdict.budget.give_back(verdict.spent)
                    verdict.mark_refunded()
                elif isinstance(verdict, LocalVerdict) and is_local(verdict.charge):
                    self.memory.refund([verdict])
                    verdict.budget.due_at = float("-inf")
                else:
                    others.append(verdict)
                    budget = self.budgets.get(verdict.charge.key + verdict.charge.limit.tag)
                    if budget is not None:
                        budget.gave_back()
        return others

    def forget_keys(self, charges: Iterable[Charge]) -> None:
        """Know nothing of these keys any more."""
        charges = list(charges)
        with self._lock:
            for charge in charges:
                self.budgets.pop(charge.key + charge.limit.tag, None)
                self.refusals.forget(charge)
        self.memory.reset(charges)

    def peeked(self, charges: Sequence[Charge], replies: Sequence[Verdict]) -> list[Verdict]:
        """What the charges would be told. replies: the engine's verdicts on those that it was asked about."""
        with self._lock:
            return peeked(self, charges, replies, self._clock())

    def look(self, budget: Budget, charge: Charge, now: float) -> None:
        """Renew a purely local budget from the memory that counts it."""
        carried = budget.carried(now)
        if carried:
            told = budget.charge._replace(cost=0, carried=carried, usage=None)
            self.memory.check([told], now_us=budget.time_at(budget.spent_at))
        [verdict] = self.memory.check([charge._replace(cost=0, usage=None)])
        window = charge.limit.window_us / 1_000_000
        budget.learn(verdict, carried, now, now, min(LOCAL_INTERVAL, window / LOCAL_PARTS))
        if verdict.remaining < charge.cost <= charge.limit.quota:
            budget.refuse(charge, now + (self.memory.peek([charge])[0].retry_after or 0.0))

    def _count(self, verdicts: Sequence[Verdict]) -> None:
        field = field_of(verdicts)
        if field:
            key = verdicts[0].at_us // 60_000_000, field
            self._tally[key] = self._tally.get(key, 0) + 1

    @property
    def owes(self) -> bool:
        """Whether there are counts that the engine has not been told of."""
        return bool(self._tally or self._unsent)

    def take_counts(self) -> Held | None:
        """Counts to travel with a call, under the lock; then tell `counted` what became of them."""
        for (minute, field), calls in self._tally.items():
            self._unsent.add(minute, field, calls)
        self._tally.clear()
        return self._unsent.take()

    def counted(self, counts: Held | None, *, done: bool) -> None:
        """Whether counts that were taken have arrived; where nobody knows they are sent again."""
        if counts:
            (self._unsent.done if done else self._unsent.back)(counts)


def _settled(budget: Budget, charge: Charge, now: float, denied: bool) -> Verdict:
    """Spend it here, unless its call is denied."""
    if charge.cost <= charge.limit.quota - budget.used:
        if denied or not charge.cost:
            return budget.verdict(charge, now, allowed=True, spent=0, denied=denied)
        budget.spend(charge, now)
        return budget.verdict(charge, now, allowed=True, spent=charge.cost, denied=False)
    if charge.count_refusals:
        budget.punish(charge, now)
    return budget.verdict(charge, now, allowed=False, spent=0, denied=denied)


def _forget_in_child() -> None:
    for ledger in _ALL:
        ledger.forget()


os.register_at_fork(after_in_child=_forget_in_child)
