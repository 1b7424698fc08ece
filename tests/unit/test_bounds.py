"""Never more than the documented bound is admitted, however greedy the caller; each engine by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit, Verdict
from tests.engine.asking import fresh, microseconds
from tests.engine.strategies import cost_by, limit_by, pause_by
from tests.engine.trio import HOUR
from tests.engine.walk import LATEST
from tests.reference import calendar_window, capacity_of, period_of


@dataclass
class Admitted:
    """Units that were admitted at a time and leave `delay` later, both in microseconds."""

    at: int
    units: int
    delay: int = 0


def greedy(engine: Engine, limit: Limit, random: Random, calls: int) -> list[Admitted]:
    """Spend all that can be spent, or some of it, at times that go forward."""
    charge, now, admitted = Charge(fresh(), limit), HOUR + random.randint(0, period_of(limit)), []
    for _ in range(calls):
        left = engine.peek([charge], now)[0].remaining
        cost = left if random.randrange(2) else cost_by(random, limit, left)
        verdict = engine.check([charge._replace(cost=cost)], now_us=now)[0]
        if verdict.spent:
            admitted.append(Admitted(now, verdict.spent, microseconds(verdict.delay)))
        now += _pause(random, now, limit, verdict)
        if now > LATEST:
            break
    return admitted


def _pause(random: Random, now: int, limit: Limit, verdict: Verdict) -> int:
    promised = [seconds for seconds in (verdict.retry_after, verdict.reset_after) if seconds]
    if promised and random.randrange(2):
        return microseconds(random.choice(promised)) - random.randrange(2)
    return abs(pause_by(random, now, limit))


def stretches(admitted: list[Admitted]) -> Iterator[tuple[int, int, int]]:
    """Every stretch of time from one admission to another: its two ends and the units admitted in it."""
    for index, first in enumerate(admitted):
        units = 0
        for last in admitted[index:]:
            units += last.units
            yield first.at, last.at, units


def per_window(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the quota between two edges of the clock or the calendar."""
    for first, last, units in stretches(admitted):
        start = calendar_window(limit, last)[0] if limit.calendar else last - last % period_of(limit)
        assert first < start or units <= limit.quota


def per_window_from_the_first(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the quota in a window, each from the first admission after the one before; twice that in any stretch."""
    start, units = None, 0
    for one in admitted:
        if start is None or one.at >= start + period_of(limit):
            start, units = one.at, 0
        units += one.units
        assert units <= limit.quota
    assert all(sum_ <= 2 * limit.quota for first, last, sum_ in stretches(admitted) if last - first < period_of(limit))


def in_any_stretch(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the quota in any stretch as long as the window."""
    assert all(units <= limit.quota for first, last, units in stretches(admitted) if last - first < period_of(limit))


def below_twice_in_any_stretch(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the quota in any window of the clock, and below twice that in any stretch."""
    per_window(limit, admitted)
    for first, last, units in stretches(admitted):
        assert last - first >= period_of(limit) or units < 2 * limit.quota


def in_whole_slots(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the quota in any slots that follow each other, as many as a window has."""
    slots, period = limit.slots or 10, period_of(limit)
    for first, last, units in stretches(admitted):
        assert last * slots // period - first * slots // period >= slots or units <= limit.quota


def burst_and_rate(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the capacity, and what comes back in the meantime."""
    tick, period = limit.terms.tick_us, period_of(limit)
    for first, last, units in stretches(admitted):
        elapsed = (last // tick - first // tick) * tick
        assert units <= capacity_of(limit) + Fraction(elapsed * limit.quota, period)


def burst_and_whole_windows(limit: Limit, admitted: list[Admitted]) -> None:
    """At most the capacity, and the quota for each edge of the clock in between."""
    for first, last, units in stretches(admitted):
        edges = last // period_of(limit) - first // period_of(limit)
        assert units <= capacity_of(limit) + edges * limit.quota


def in_line(limit: Limit, admitted: list[Admitted]) -> None:
    """What leaves the queue leaves in order, and each only when the rate has room for all before it."""
    burst_and_rate(limit, admitted)
    leaving = [Admitted(one.at + one.delay, one.units) for one in admitted]
    for first, last, units in stretches(leaving):
        before_the_last = units - next(one.units for one in reversed(leaving) if one.at == last)
        room = Fraction((last - first + limit.terms.tick_us) * limit.quota, period_of(limit))
        assert last >= first
        assert before_the_last <= room


def bound_of(limit: Limit) -> Callable[[Limit, list[Admitted]], None]:
    """The check of the bound that the documentation states for this limit."""
    if limit.anchor == "first_request":
        return per_window_from_the_first
    if limit.refill == "interval":
        return burst_and_whole_windows
    return {
        "fixed_window": per_window,
        "sliding_window_log": in_any_stretch,
        "sliding_window_counter": below_twice_in_any_stretch,
        "sliding_window_slots": in_whole_slots,
        "token_bucket": burst_and_rate,
        "gcra": burst_and_rate,
        "leaky_bucket": in_line,
        "concurrency": in_any_stretch,  # leases that nobody ends
    }[limit.algorithm]


@pytest.mark.parametrize("algorithm", Algorithm)
@given(random=st.randoms(use_true_random=False), calls=st.integers(1, 20))
def test_never_more_than_the_bound(asked: Engine, algorithm: Algorithm, random: Random, calls: int) -> None:
    limit = limit_by(random, algorithm)
    bound_of(limit)(limit, greedy(asked, limit, random, calls))
