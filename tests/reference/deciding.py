"""From what is used to answers: all or nothing, what remains, and from when on a cost would pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import time
from fractions import Fraction
from math import floor

from django_ratelimiter.engine import Charge, Limit, Verdict

from .counters import Counter, Log, Units, capacity_of, counter_for, period_of, slots_of

US = 1_000_000


class First:
    """The first moment from which on something holds, in whole microseconds from now.

    holds: tells it for any moment; once it holds, it does for ever. It reads the counters as they are when it is
    asked, so ask before the next call.
    """

    def __init__(self, holds: Callable[[int], bool]) -> None:
        self.holds = holds

    def is_at(self, wait: int) -> bool:
        """Whether it is this moment: not before it, and at it."""
        return wait >= 0 and self.holds(wait) and not (wait and self.holds(wait - 1))

    def find(self) -> int:
        """The moment, searched for."""
        if self.holds(0):
            return 0
        high = 1
        while not self.holds(high):
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.holds(middle) else (middle, high)
        return high


#: Microseconds: a number where it is plain, `None` = never.
Wait = First | int | None


@dataclass(slots=True)
class Answer:
    """What a verdict must say. `charge`, `spent` and `spent_at` make it a receipt."""

    allowed: bool
    remaining: int
    retry_after: Wait
    reset_after: Wait
    delay: Wait
    soft_exceeded: bool
    spent: int
    charge: Charge
    spent_at: int
    taken: int = 0


def differences(verdict: Verdict, answer: Answer) -> dict[str, str]:
    """What a verdict says wrong, by name. To be asked before the next call to the reference."""
    wrong = {}
    pairs = {
        "allowed": (verdict.allowed, answer.allowed),
        "remaining": (verdict.remaining, answer.remaining),
        "soft_exceeded": (verdict.soft_exceeded, answer.soft_exceeded),
        "spent": (verdict.spent, answer.spent),
        "spent_at_us": (verdict.spent_at_us, answer.spent_at),
    }
    for name, (said, due) in pairs.items():
        if said != due:
            wrong[name] = f"{said}, not {due}"
    for name in ("retry_after", "reset_after", "delay"):
        due = getattr(answer, name)
        if not _is_when(getattr(verdict, name), due):
            moment = due.find() if isinstance(due, First) else due
            wrong[name] = f"{getattr(verdict, name)} s, not {moment} us"
    return wrong


def _is_when(seconds: float | None, due: Wait) -> bool:
    """Whether an engine's seconds are this moment to the microsecond."""
    if seconds is None or due is None:
        return seconds is due
    wait = round(seconds * US)
    return wait / US == seconds and (due.is_at(wait) if isinstance(due, First) else wait == due)


class Reference:
    """Decides like an engine whose clock is given with each call."""

    def __init__(self) -> None:
        self._counters: dict[tuple[object, ...], Counter] = {}

    def check(
        self,
        charges: Sequence[Charge],
        now_us: int,
        refund_if_denied: Iterable[Answer] = (),
        *,
        reject: bool = False,
        wants: Sequence[int] = (),
        returned: Iterable[Answer] = (),
    ) -> list[Answer]:
        """All gating charges pass and are spent, or no charge that passes is. reject: that is known already.

        wants: units of each that are spent too if it is: at most an eighth of what is then left, and none beyond a
        soft quota. returned: given back before.
        """
        self.refund(returned)
        passing = [self._passes(charge, now_us) for charge in charges]
        delays = [self._delay(charge, now_us, passes) for charge, passes in zip(charges, passing, strict=True)]
        rejected = reject or _is_rejected(charges, passing)
        answers = []
        wanted = wants or (0,) * len(charges)
        for charge, passes, delay, want in zip(charges, passing, delays, wanted, strict=True):
            spent = self._spend(charge, now_us, passes=passes, rejected=rejected)
            soft = passes and not rejected and self._is_soft(charge, now_us, more=0)
            taken = self._take(charge, now_us, want) if passes and spent else 0
            answers.append(self._answer(charge, now_us, passes, delay, soft, spent))
            answers[-1].taken = taken
        if rejected:
            self.refund(refund_if_denied)
        return answers

    def peek(self, charges: Sequence[Charge], now_us: int) -> list[Answer]:
        """The answers of `check`, but for what remains: that is told as it stands."""
        passing = [self._passes(charge, now_us) for charge in charges]
        rejected = _is_rejected(charges, passing)
        answers = []
        for charge, passes in zip(charges, passing, strict=True):
            soft = passes and not rejected and self._is_soft(charge, now_us, more=charge.cost)
            answers.append(self._answer(charge, now_us, passes, self._delay(charge, now_us, passes), soft, 0))
        return answers

    def refund(self, answers: Iterable[Answer]) -> None:
        """Give back what these answers spent, once."""
        for answer in answers:
            if answer.spent:
                self._counter(answer.charge).refund(answer.charge.limit, answer.spent, answer.spent_at)
                answer.spent = 0

    def release(self, answers: Iterable[Answer]) -> None:
        """End the leases of these answers, once; what other algorithms spent stays spent."""
        self.refund(answer for answer in answers if answer.charge.limit.algorithm == "concurrency")

    def reset(self, charges: Iterable[Charge]) -> None:
        """Forget these counters."""
        for charge in charges:
            self._counters.pop(_name(charge), None)

    def _counter(self, charge: Charge) -> Counter:
        name = _name(charge)
        if name not in self._counters:
            self._counters[name] = counter_for(charge.limit)
        return self._counters[name]

    def _level(self, charge: Charge, now: int) -> Units:
        """What counts against the limit; a clock that ran back stands still at the key's last spending."""
        counter = self._counter(charge)
        return counter.level(charge.limit, max(now, counter.last))

    def _remaining(self, charge: Charge, now: int) -> int:
        """The largest cost that would pass: none where a leaky bucket would hold it for too long."""
        if charge.limit.algorithm == "leaky_bucket" and charge.max_delay is not None:
            counter, most = self._counter(charge), floor(Fraction(str(charge.max_delay)) * US)
            if counter.level(charge.limit, max(now, counter.last) + most) > 0:
                return 0
        return max(floor(capacity_of(charge.limit) - self._level(charge, now)), 0)

    def _passes(self, charge: Charge, now: int) -> bool:
        return charge.cost <= self._remaining(charge, now)

    def _delay(self, charge: Charge, now: int, passes: bool) -> Wait:
        """How long an admitted request is held: until what was queued before it has drained. Asked before spending.

        It counts from the counter's clock: those that sleep notice nothing of a clock that ran back.
        """
        if not passes or charge.limit.algorithm != "leaky_bucket":
            return 0
        before, limit = copy(self._counter(charge)), charge.limit
        at = max(now, before.last)
        return First(lambda wait: before.level(limit, at + wait) == 0)

    def _spend(self, charge: Charge, now: int, *, passes: bool, rejected: bool) -> int:
        """Spend if it must; the units that a refund would give back."""
        if charge.cost == 0 or (rejected if passes else not charge.count_refusals):
            return 0
        counter, at = self._counter(charge), max(now, self._counter(charge).last)
        if passes:
            counter.spend(charge.limit, charge.cost, at)
            return charge.cost
        counter.reject(charge.limit, charge.cost, at)
        return 0

    def _take(self, charge: Charge, now: int, want: int) -> int:
        left, limit = floor(capacity_of(charge.limit) - self._level(charge, now)), charge.limit
        beyond_soft = 0 if limit.soft_quota is None else capacity_of(limit) - limit.soft_quota
        taken = max(0, min(want, left // 8, left - beyond_soft))
        self._spend(charge._replace(cost=taken), now, passes=True, rejected=False)
        return taken

    def _answer(self, charge: Charge, now: int, allowed: bool, delay: Wait, soft: bool, spent: int) -> Answer:
        counter, limit = self._counter(charge), charge.limit
        capacity, retry_after = capacity_of(limit), 0
        if charge.cost > capacity:
            retry_after = None
        elif not allowed:
            retry_after = First(lambda wait: self._passes(charge, now + wait))
            if limit.algorithm == "concurrency" and isinstance(counter, Log):
                retry_after = counter.earliest_end(limit, max(now, counter.last)) - now
        reset_after = First(lambda wait: floor(capacity - self._level(charge, now + wait)) == capacity)
        remaining, spent_at = self._remaining(charge, now), max(now, counter.last)
        return Answer(allowed, remaining, retry_after, reset_after, delay, soft, spent, charge, spent_at)

    def _is_soft(self, charge: Charge, now: int, *, more: int) -> bool:
        """Whether the soft quota is exceeded, once so much more is spent."""
        soft = charge.limit.soft_quota
        return soft is not None and self._level(charge, now) + more > soft


def _is_rejected(charges: Sequence[Charge], passing: Sequence[bool]) -> bool:
    return any(charge.gating and not passes for charge, passes in zip(charges, passing, strict=True))


def _name(charge: Charge) -> tuple[object, ...]:
    """What tells counters apart: units and soft quotas may change, what they are counted in may not.

    A default means the same whether it is set or not.
    """
    limit: Limit = charge.limit
    kind = (
        (limit.calendar, limit.timezone or "UTC", limit.anchor_day or 1, limit.anchor_time or time())
        if limit.calendar
        else period_of(limit)
    )
    return charge.key, limit.algorithm, kind, limit.anchor, limit.refill, slots_of(limit)
