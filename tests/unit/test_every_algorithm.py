"""The frame keeps its promises with every algorithm and option: in one call, and in what is remembered."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit, MemoryEngine
from tests.engine.asking import fresh
from tests.engine.strategies import cost_by, limit_by, pause_by
from tests.engine.trio import HOUR
from tests.reference import period_of

LIMITS = {
    **{str(algorithm): Limit(5, 60, algorithm) for algorithm in Algorithm},
    "first_request": Limit(5, 60, "fixed_window", anchor="first_request"),
    "calendar": Limit(5, algorithm="fixed_window", calendar="day", timezone="Europe/Berlin"),
    "interval": Limit(5, 60, "token_bucket", refill="interval"),
    "burst": Limit(2, 60, "leaky_bucket", burst=5),
}
every = pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)


def one_of_each() -> list[Charge]:
    mark = fresh()
    return [Charge(f"{mark}/{name}", limit) for name, limit in LIMITS.items()]


def left(engine: Engine, *charges: Charge, now: int = HOUR) -> list[int]:
    return [verdict.remaining for verdict in engine.peek(charges, now)]


@pytest.mark.parametrize("rejecting", range(len(LIMITS)), ids=LIMITS)
def test_a_call_of_all_algorithms_is_spent_whole_or_not_at_all(asked: Engine, rejecting: int) -> None:
    charges = one_of_each()
    asked.check(charges, now_us=HOUR)
    charges[rejecting] = charges[rejecting]._replace(cost=5)
    rejected = asked.check(charges, now_us=HOUR)
    assert [verdict.allowed for verdict in rejected] == [index != rejecting for index in range(len(charges))]
    assert [verdict.spent for verdict in rejected] == [0] * len(charges)
    assert left(asked, *charges) == [4] * len(charges)
    charges[rejecting] = charges[rejecting]._replace(gating=False)
    passed = asked.check(charges, now_us=HOUR)
    assert [verdict.spent for verdict in passed] == [int(index != rejecting) for index in range(len(charges))]


def test_keys_are_not_mixed_up(asked: Engine) -> None:
    """Each key, algorithm and window has a counter of its own."""
    key = fresh()
    kinds = [Limit(5, window, algorithm) for window in (60, 61) for algorithm in Algorithm]
    charges = [Charge(key + more, limit, 2) for limit in kinds for more in ("", ":", ":b60", ":token_bucket:60000000")]
    for _ in range(2):
        verdicts = asked.check(charges, now_us=HOUR)
    assert [verdict.remaining for verdict in verdicts] == [1] * len(charges)
    asked.reset(charges[:1])
    assert left(asked, *charges) == [5] + [1] * (len(charges) - 1)


@every
def test_a_cost_above_the_capacity_never_passes_and_nothing_always_does(asked: Engine, limit: Limit) -> None:
    key = fresh()
    for cost in (6, 2**53, 10**30):
        rejected = asked.check([Charge(key, limit, cost)], now_us=HOUR)[0]
        assert (rejected.allowed, rejected.retry_after, rejected.remaining, rejected.delay) == (False, None, 5, 0)
    asked.check([Charge(key, limit, 5)], now_us=HOUR)
    looked = asked.check([Charge(key, limit, 0, max_delay=0)], now_us=HOUR)[0]
    assert (looked.allowed, looked.remaining, looked.retry_after, looked.spent) == (True, 0, 0, 0)


@pytest.mark.parametrize("delay", [-1, -0.001, float("nan"), Decimal("NaN"), "1"])
def test_delays_that_are_none(asked: Engine, delay: float) -> None:
    with pytest.raises(ValueError, match="max_delay: must be a number of seconds from 0"):
        asked.check([Charge(fresh(), LIMITS["leaky_bucket"], max_delay=delay)])


@pytest.mark.parametrize("now_us", [-1, -5, 2**53, 2**63])
def test_times_that_no_engine_knows(asked: Engine, now_us: int) -> None:
    for ask in (asked.check, asked.peek):
        with pytest.raises(ValueError, match="now_us: must be microseconds since 1970"):
            ask([Charge(fresh(), LIMITS["calendar"])], now_us=now_us)


@pytest.mark.parametrize("name", sorted({*map(str, Algorithm)} - {"fixed_window"}))
def test_who_keeps_asking_stays_out_only_where_rejections_count(asked: Engine, name: str) -> None:
    counting, other = (
        Charge(fresh(), LIMITS[name], count_refusals=counts, max_delay=0 if name == "leaky_bucket" else None)
        for counts in (True, False)
    )
    admitted = {counting: 0, other: 0}
    for second in range(600):
        for charge in admitted:
            admitted[charge] += asked.check([charge], now_us=HOUR + second * 1_000_000)[0].allowed
    assert admitted[counting] <= 10 < 40 <= admitted[other] <= 60


# What is remembered


@pytest.mark.parametrize("algorithm", Algorithm)
@given(random=st.randoms(use_true_random=False))
def test_a_memory_engine_that_tidies_up_forgets_nothing_that_counts(algorithm: Algorithm, random: Random) -> None:
    limit, now = limit_by(random, algorithm), HOUR
    tidy, other = MemoryEngine(), MemoryEngine()
    for _ in range(random.randint(1, 12)):
        charges = [Charge(key, limit, cost_by(random, limit), count_refusals=random.randrange(4) == 0) for key in "ab"]
        asked_for = random.choices(charges, k=1)
        tidy._sweep_at = 0
        assert tidy.check(asked_for, now_us=now) == other.check(asked_for, now_us=now)
        now += abs(pause_by(random, now, limit))


@every
def test_a_memory_engine_forgets_what_says_nothing_any_more(limit: Limit) -> None:
    engine, now = MemoryEngine(), HOUR
    for number in range(5_000):
        now += period_of(limit) // 100
        engine.check([Charge(f"{number}", limit)], now_us=now)
    assert len(engine._counters) <= 2_000
