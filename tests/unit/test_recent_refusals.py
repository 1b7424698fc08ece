"""Recent refusals: what both engines remember of whom they have refused, written with the decision."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, Engine, Limit, MemoryEngine
from django_ratelimiter.engine.usage import MAX_LISTED, RECORDED_EXACTLY, RECORDED_ONE_IN, Refusal, UsageCarry
from tests.engine.trio import HOUR

ONE = Limit(1, 86_400, "fixed_window")
HOUR_US = 3_600_000_000
DIGEST = "d" * 22
_numbers = count()


def charge(whom: str = DIGEST, rule: str = "login", **options: object) -> Charge:
    return Charge(f"{rule}:{whom}", ONE, usage=f"{rule}|free")._replace(**options)  # type: ignore[arg-type]


def check(engine: Engine, *charges: Charge, at: int = HOUR, times: int = 1) -> None:
    for _ in range(times):
        engine.check(charges, now_us=at)


def test_a_refusal_is_remembered_with_the_rule_the_caller_and_the_time(engine: Engine) -> None:
    check(engine, charge(), times=3)
    check(engine, charge(), at=HOUR + 5)
    assert engine.recent_refusals() == [Refusal(HOUR + 5, HOUR, 3, "login|free", f"login:{DIGEST}:f86400")]
    (refusal,) = engine.recent_refusals()
    assert (refusal.rule, refusal.tier, refusal.partition, refusal.shadow) == ("login", "free", DIGEST, False)


def test_who_is_allowed_is_not_remembered(engine: Engine) -> None:
    check(engine, charge(), charge("x", "other"))
    engine.peek([charge()], HOUR)
    engine.check([charge("z")], now_us=HOUR, refused=True)
    assert engine.recent_refusals() == []


def test_only_the_charges_that_refuse_are_remembered_and_none_without_a_label(engine: Engine) -> None:
    check(engine, charge())
    check(engine, charge(), charge("x", "other"), charge("y", "unlabelled", cost=2, usage=None))
    assert [each.counter for each in engine.recent_refusals()] == [f"login:{DIGEST}:f86400"]


def test_a_shadow_s_refusals_are_marked(engine: Engine) -> None:
    check(engine, charge(gating=False), times=2)
    (refusal,) = engine.recent_refusals()
    assert (refusal.shadow, refusal.rule, refusal.times) == (True, "login", 1)


def test_the_latest_come_first_so_many_and_of_one_rule(engine: Engine) -> None:
    for number in range(5):
        check(engine, charge(f"c{number}", "even" if number % 2 == 0 else "odd"), times=2, at=HOUR + number)
    assert [each.partition for each in engine.recent_refusals()] == ["c4", "c3", "c2", "c1", "c0"]
    assert [each.partition for each in engine.recent_refusals(2)] == ["c4", "c3"]
    assert [each.partition for each in engine.recent_refusals(rule="odd")] == ["c3", "c1"]


def test_a_flood_is_recorded_at_first_and_then_in_hundreds(engine: Engine) -> None:
    check(engine, charge(), times=1 + RECORDED_EXACTLY)
    assert engine.recent_refusals()[0].times == RECORDED_EXACTLY
    check(engine, charge(), at=HOUR + 1, times=RECORDED_ONE_IN - 1)
    assert engine.recent_refusals()[0].times == RECORDED_EXACTLY
    check(engine, charge(), at=HOUR + 2)
    assert engine.recent_refusals()[0][:3] == (HOUR + 2, HOUR, RECORDED_EXACTLY + RECORDED_ONE_IN)
    check(engine, charge(), at=HOUR + 60_000_000)
    assert engine.recent_refusals()[0].times == RECORDED_EXACTLY + RECORDED_ONE_IN + 1, "a minute later, each again"


def test_after_an_hour_of_peace_the_count_begins_anew(engine: Engine) -> None:
    check(engine, charge(), times=4)
    check(engine, charge(), at=HOUR + HOUR_US - 1)
    assert engine.recent_refusals()[0][:3] == (HOUR + HOUR_US - 1, HOUR, 4)
    check(engine, charge(), at=HOUR + 2 * HOUR_US - 1)
    assert engine.recent_refusals()[0][:3] == (HOUR + 2 * HOUR_US - 1, HOUR + 2 * HOUR_US - 1, 1)


def test_the_list_is_bounded_and_a_shadow_pushes_no_refusal_out(engine: Engine) -> None:
    for number in range(MAX_LISTED // 2):
        engine.check([charge(f"c{number}", cost=2)], now_us=HOUR + number * 60_000_000)
    for number in range(MAX_LISTED // 2 + 1):
        minute = MAX_LISTED // 2 + number
        engine.check([charge(f"s{number}", cost=2, gating=False)], now_us=HOUR + minute * 60_000_000)
    found = engine.recent_refusals(limit=10_000)
    assert [each.partition for each in found if not each.shadow][:2] == ["c499", "c498"]
    assert len([each for each in found if not each.shadow]) == MAX_LISTED // 2
    shadows = [each.partition for each in found if each.shadow]
    assert shadows[:250] == [f"s{number}" for number in range(500, 250, -1)]
    assert len(shadows) <= 250 + 64, "beside as many minutes that nobody collects, Redis looks only now and then"


def test_held_counts_are_counted_and_tell_of_nobody(engine: Engine) -> None:
    minute = HOUR // 60_000_000
    engine.check([], now_us=HOUR, counts=UsageCarry("id", ((minute, "login|free\nd", RECORDED_EXACTLY),)))
    assert engine.recent_refusals() == []
    check(engine, charge(cost=2))
    assert engine.recent_refusals() == [], "what was held counts to the first of a minute"


calls = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["r", "s t", "ü%s"]), st.booleans(), st.integers(0, 2)),
            min_size=1,
            max_size=3,
            unique_by=lambda each: each[:2],
        ),
        st.integers(1, 150),
        st.sampled_from([0, 1, 1_000_000, 60_000_000, HOUR_US]),
    ),
    max_size=12,
)


@given(calls)
def test_both_engines_remember_the_same(redis_engine: Callable[[str], Engine] | None, made: list) -> None:
    if redis_engine is None:
        pytest.skip("no server runs")
    memory, redis = MemoryEngine(), redis_engine(f"recent{next(_numbers)}")
    now = HOUR
    for charges, times, pause in made:
        for _ in range(times):
            asked = [charge(whom, rule, gating=gating, cost=cost) for whom, rule, gating, cost in charges]
            assert redis.check(asked, now_us=now) == memory.check(asked, now_us=now)
        assert redis.recent_refusals() == memory.recent_refusals()
        now += pause
