"""What the engine has to answer, told a second time and in the plainest way: exact fractions and a search.

It shares no code with `django_ratelimiter.engine`, only its data: charges and limits. Each algorithm says how much
remains of a key at a moment, straight from its formula; `retry_after` and `reset_after` are then searched for, moment
by moment, instead of computed. Slow, and meant to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd

from django_ratelimiter.engine import Charge, Limit, Verdict

US = 1_000_000


@dataclass
class Answer:
    """What a verdict must say. `charge`, `spent` and `spent_at` make it a receipt; times are in microseconds."""

    allowed: bool
    remaining: int
    retry_after: int | None
    reset_after: int
    soft_exceeded: bool
    spent: int
    charge: Charge
    spent_at: int


def seen(verdict: Verdict) -> tuple[object, ...]:
    """A verdict of an engine, to be compared with `due`."""
    return (
        verdict.allowed,
        verdict.remaining,
        verdict.retry_after,
        verdict.reset_after,
        verdict.soft_exceeded,
        verdict.spent,
        verdict.spent_at_us,
        verdict.delay,
    )


def due(answer: Answer) -> tuple[object, ...]:
    """What `seen` must give."""
    retry_after = None if answer.retry_after is None else answer.retry_after / US
    reset_after = answer.reset_after / US
    return (
        answer.allowed,
        answer.remaining,
        retry_after,
        reset_after,
        answer.soft_exceeded,
        answer.spent,
        answer.spent_at,
        0.0,
    )


def period_of(limit: Limit) -> int:
    """The window in microseconds."""
    return int(Fraction(str(limit.window)) * US)


def capacity_of(limit: Limit) -> int:
    return limit.quota if limit.burst is None else limit.burst


class Window:
    """The units spent in each of the clock's windows, for fixed_window and sliding_window_counter."""

    def __init__(self) -> None:
        self.last = 0
        self.units: dict[int, int] = {}

    def level(self, limit: Limit, now: int) -> Fraction:
        """The units that count at this moment."""
        period = period_of(limit)
        window = now // period
        current = Fraction(self.units.get(window, 0))
        if limit.algorithm == "fixed_window":
            return current
        tick = limit.terms.tick_us
        elapsed = Fraction(now // tick * tick - window * period, period)
        return self.units.get(window - 1, 0) * (1 - elapsed) + current

    def spend(self, limit: Limit, cost: int, now: int) -> None:
        window = now // period_of(limit)
        used = self.units.get(window, 0)
        self.units[window] = max(used, min(used + cost, capacity_of(limit)))
        self.last = now

    def refund(self, limit: Limit, cost: int, spent_at: int) -> None:
        window = spent_at // period_of(limit)
        if window == self.last // period_of(limit):
            self.units[window] = max(self.units[window] - cost, 0)


class Bucket:
    """The tokens that were missing after the last spending."""

    def __init__(self) -> None:
        self.last = 0
        self.missing = Fraction(0)
        self.parts = 0

    def level(self, limit: Limit, now: int) -> Fraction:
        """The tokens that are missing at this moment."""
        tick, period = limit.terms.tick_us, period_of(limit)
        missing = self.missing
        if self.parts != self.parts_of(limit):  # a changed quota rounds up to a whole part of a token
            missing = Fraction(ceil(missing * self.parts_of(limit)), self.parts_of(limit))
        back = Fraction((now // tick - self.last // tick) * tick * limit.quota, period)
        return max(min(missing, Fraction(capacity_of(limit))) - back, Fraction(0))

    @staticmethod
    def parts_of(limit: Limit) -> int:
        ticks = period_of(limit) // limit.terms.tick_us
        return ticks // gcd(ticks, limit.quota)

    def spend(self, limit: Limit, cost: int, now: int) -> None:
        self.missing = min(self.level(limit, now) + cost, Fraction(capacity_of(limit)))
        self.parts, self.last = self.parts_of(limit), now

    def refund(self, limit: Limit, cost: int, spent_at: int) -> None:
        self.missing = max(self.missing - cost, Fraction(0))


Counter = Window | Bucket


class Reference:
    """Decides like an engine whose clock is given with each call."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str, int], Counter] = {}

    def check(self, charges: Sequence[Charge], now_us: int, refund_if_denied: Iterable[Answer] = ()) -> list[Answer]:
        """All gating charges pass and are spent, or no charge that passes is."""
        denied = self._denied(charges, now_us)
        before = [self._remaining(charge, now_us) for charge in charges]
        spent = [self._spend(charge, now_us, denied) for charge in charges]
        answers = [self._answer(*known, now_us, denied) for known in zip(charges, before, spent, strict=True)]
        if denied:
            self.refund(refund_if_denied)
        return answers

    def peek(self, charges: Sequence[Charge], now_us: int) -> list[Answer]:
        """The answers of `check`, but for what remains: that is told as it stands."""
        denied = self._denied(charges, now_us)
        answers = [self._answer(charge, self._remaining(charge, now_us), 0, now_us, denied) for charge in charges]
        for answer in answers:
            answer.soft_exceeded = answer.allowed and not denied and self._is_soft(answer.charge, now_us, unspent=True)
        return answers

    def refund(self, answers: Iterable[Answer]) -> None:
        """Give back what these answers spent, once."""
        for answer in answers:
            if answer.spent:
                self._counter(answer.charge).refund(answer.charge.limit, answer.spent, answer.spent_at)
                answer.spent = 0

    def _counter(self, charge: Charge) -> Counter:
        limit = charge.limit
        kind = Bucket if limit.algorithm == "token_bucket" else Window
        return self._counters.setdefault((charge.key, str(limit.algorithm), period_of(limit)), kind())

    def _level(self, charge: Charge, now: int) -> Fraction:
        """What counts against the limit; a clock that ran back stands still at the key's last spending."""
        counter = self._counter(charge)
        return counter.level(charge.limit, max(now, counter.last))

    def _remaining(self, charge: Charge, now: int) -> int:
        """The largest cost that would pass."""
        return max(floor(capacity_of(charge.limit) - self._level(charge, now)), 0)

    def _denied(self, charges: Sequence[Charge], now: int) -> bool:
        return any(charge.gating and charge.cost > self._remaining(charge, now) for charge in charges)

    def _spend(self, charge: Charge, now: int, denied: bool) -> int:
        """Spend if it must; the units that a refund would give back."""
        passes = charge.cost <= self._remaining(charge, now)
        spends = charge.cost > 0 and (not denied if passes else charge.count_refusals)
        if spends:
            counter = self._counter(charge)
            counter.spend(charge.limit, charge.cost, max(now, counter.last))
        return charge.cost if spends and passes else 0

    def _answer(self, charge: Charge, before: int, spent: int, now: int, denied: bool) -> Answer:
        capacity, allowed = capacity_of(charge.limit), charge.cost <= before
        remaining = self._remaining(charge, now)
        retry_after: int | None = 0
        if charge.cost > capacity:
            retry_after = None
        elif not allowed:
            retry_after = self._first(charge, now, charge.cost)
        return Answer(
            allowed,
            remaining,
            retry_after,
            0 if remaining == capacity else self._first(charge, now, capacity),
            allowed and not denied and self._is_soft(charge, now, unspent=False),
            spent,
            charge,
            max(now, self._counter(charge).last),
        )

    def _is_soft(self, charge: Charge, now: int, *, unspent: bool) -> bool:
        """Whether the soft quota is exceeded once the charge is spent."""
        soft = charge.limit.soft_quota
        return soft is not None and self._level(charge, now) + (charge.cost if unspent else 0) > soft

    def _first(self, charge: Charge, now: int, units: int) -> int:
        """Microseconds until so many units remain; they are less now. What remains only grows while time goes on."""
        return first(lambda wait: self._remaining(charge, now + wait) >= units)


def first(holds: Callable[[int], bool]) -> int:
    """The smallest whole number above 0 from which on `holds` holds; it does not at 0."""
    high = 1
    while not holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
