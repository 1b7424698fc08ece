"""Answers keep their promises, held against each engine by itself: no reference takes part."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit
from tests.engine.asking import fresh, microseconds, used_up
from tests.engine.strategies import changed_by, cost_by, limit_by
from tests.engine.trio import HOUR
from tests.reference import capacity_of, period_of

randoms = st.randoms(use_true_random=False)
EXACTLY_TIMED = [algorithm for algorithm in Algorithm if algorithm != "concurrency"]


@pytest.mark.parametrize("algorithm", EXACTLY_TIMED)
@given(random=randoms)
def test_a_rejected_cost_passes_at_retry_after_and_not_before(asked: Engine, algorithm: str, random: Random) -> None:
    limit = limit_by(random, algorithm)
    charge = Charge(fresh(), limit, random.randint(1, capacity_of(limit)))
    now = used_up(asked, charge, random)
    if algorithm == "leaky_bucket":
        charge = charge._replace(max_delay=random.choice((None, 0, 0.001, random.randint(0, 10_000) / 1_000)))
    assert_passes_when_promised(asked, charge, now, random)


def assert_passes_when_promised(engine: Engine, charge: Charge, now: int, random: Random) -> None:
    """The charge is rejected now and before `retry_after`, which does not move, and admitted then."""
    rejected = engine.check([charge], now_us=now)[0]
    assert not rejected.allowed
    wait = microseconds(rejected.retry_after)
    for moment in (wait - 1, random.randint(0, wait - 1)):
        before = engine.peek([charge], now + moment)[0]
        assert not before.allowed
        assert moment + microseconds(before.retry_after) == wait, "the moment promised does not move"
    assert engine.check([charge], now_us=now + wait)[0].allowed


@given(random=randoms)
def test_a_rejected_lease_is_told_when_the_first_one_ends(asked: Engine, random: Random) -> None:
    limit = limit_by(random, Algorithm.CONCURRENCY)
    charge = Charge(fresh(), limit, random.randint(1, limit.quota))
    now = used_up(asked, charge, random)
    rejected = asked.check([charge], now_us=now)[0]
    wait = microseconds(rejected.retry_after)
    assert asked.peek([charge], now + wait - 1)[0].remaining == rejected.remaining
    assert asked.peek([charge], now + wait)[0].remaining > rejected.remaining
    one = asked.check([charge._replace(key=fresh(), cost=limit.quota)], now_us=now)[0]
    again = asked.check([one.charge], now_us=now)[0]
    assert again.retry_after == one.reset_after == period_of(limit) / 1_000_000
    assert asked.check([one.charge], now_us=now + period_of(limit))[0].allowed


@given(random=randoms)
def test_the_full_quota_is_back_at_reset_after_and_not_before(asked: Engine, random: Random) -> None:
    limit = limit_by(random)
    charge = Charge(fresh(), limit, random.randint(1, capacity_of(limit)))
    now = used_up(asked, charge, random)
    wait = microseconds(asked.peek([charge], now)[0].reset_after)
    assert wait > 0
    assert asked.peek([charge], now + wait - 1)[0].remaining < capacity_of(limit)
    assert asked.peek([charge], now + wait)[0].remaining == capacity_of(limit)
    assert asked.peek([charge], now + wait)[0].reset_after == 0


@given(random=randoms)
def test_remaining_is_the_largest_cost_that_passes(asked: Engine, random: Random) -> None:
    limit = limit_by(random)
    charge = Charge(fresh(), limit, max_delay=random.choice((None, None, 0, 1)))
    now = used_up(asked, charge._replace(max_delay=None), random) + random.randint(0, 2 * period_of(limit))
    left = asked.peek([charge], now)[0].remaining
    assert 0 <= left <= capacity_of(limit)
    assert not asked.peek([charge._replace(cost=left + 1)], now)[0].allowed
    spent = asked.check([charge._replace(cost=left)], now_us=now)[0]
    assert (spent.allowed, spent.remaining) == (True, 0)


@given(random=randoms)
def test_peek_tells_what_check_would_and_changes_nothing(asked: Engine, random: Random) -> None:
    limit = limit_by(random)
    charge = Charge(fresh(), limit, cost_by(random, limit))
    now = used_up(asked, charge._replace(cost=1), random) + random.randint(0, 2 * period_of(limit))
    told = asked.peek([charge], now)[0]
    assert asked.peek([charge], now)[0] == told
    done = asked.check([charge], now_us=now)[0]
    for name in ("allowed", "retry_after", "delay", "soft_exceeded"):
        assert getattr(done, name) == getattr(told, name)
    assert done.remaining == told.remaining - done.spent


@given(random=randoms)
def test_a_clock_that_runs_back_stands_still(asked: Engine, random: Random) -> None:
    limit = limit_by(random)
    charge = Charge(fresh(), limit)
    now = used_up(asked, charge._replace(cost=1), random)
    asked.check([charge._replace(count_refusals=True)], now_us=now)  # a cost of 1, so that now is the last spending
    then = asked.peek([charge], now)[0]
    assume(then.spent_at_us == now)
    back = random.randint(1, 3 * period_of(limit))
    earlier = asked.peek([charge], now - back)[0]
    assert earlier.remaining == then.remaining
    for late, early in ((then.retry_after, earlier.retry_after), (then.reset_after, earlier.reset_after)):
        assert microseconds(early) == (microseconds(late) + back if late else 0)


@given(random=randoms)
def test_a_changed_limit_makes_no_nonsense(asked: Engine, random: Random) -> None:
    """Whatever is changed, quota, burst, window, algorithm: what remains passes, one more does not, waits are true."""
    limit = limit_by(random)
    charge = Charge(fresh(), limit)
    now = used_up(asked, charge, random) + random.randint(-10, period_of(limit))
    changed = changed_by(random, limit) if random.randrange(3) else limit_by(random)
    charge = charge._replace(limit=changed, cost=random.randint(1, capacity_of(changed)))
    for _ in range(2):
        left = asked.peek([charge], now)[0].remaining
        assert 0 <= left <= changed.capacity
        assert asked.peek([charge._replace(cost=left)], now)[0].allowed
        assert not asked.peek([charge._replace(cost=left + 1)], now)[0].allowed
        if charge.cost > left and changed.algorithm != "concurrency":
            assert_passes_when_promised(asked, charge, now, random)
            return
        asked.check([charge._replace(cost=left)], now_us=now)


def test_keys_are_not_mixed_up(asked: Engine) -> None:
    """Each key, algorithm and window has a counter of its own."""
    key = fresh()
    kinds = [Limit(5, window, algorithm) for window in (60, 61) for algorithm in Algorithm]
    charges = [Charge(key + more, limit, 2) for limit in kinds for more in ("", ":", ":b60", ":token_bucket:60000000")]
    for _ in range(2):
        verdicts = asked.check(charges, now_us=HOUR)
    assert [verdict.remaining for verdict in verdicts] == [1] * len(charges)
    asked.reset(charges[:1])
    assert [verdict.remaining for verdict in asked.peek(charges, HOUR)] == [5] + [1] * (len(charges) - 1)
