"""Recent rejections: what both engines remember of whom they have rejected, written with the decision."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, Engine, Limit, MemoryEngine
from django_ratelimiter.engine.usage import UsageCarry
from django_ratelimiter.engine.usage.rejections import (
    KEPT,
    MAX_LISTED,
    RECORDED_EXACTLY,
    RECORDED_ONE_IN,
    STEP_US,
    Rejection,
    shares_of,
)
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


def test_a_rejection_is_remembered_with_the_rule_the_caller_and_the_time(engine: Engine) -> None:
    check(engine, charge(), times=3)
    check(engine, charge(), at=HOUR + 5_000_000)
    assert engine.recent_rejections() == [Rejection(HOUR + 5_000_000, HOUR, 3, "login|free", f"login:{DIGEST}:f86400")]
    (rejection,) = engine.recent_rejections()
    assert (rejection.rule, rejection.tier, rejection.partition, rejection.shadow) == ("login", "free", DIGEST, False)


@pytest.mark.parametrize("year", [2038, 2100])
def test_rejections_are_counted_exactly_until_2100(engine: Engine, year: int) -> None:
    at = int(datetime(year, 12, 31, tzinfo=UTC).timestamp()) * 1_000_000
    check(engine, charge(), at=at, times=7)
    check(engine, charge(), at=at + 3 * STEP_US, times=2)
    assert engine.recent_rejections()[0][:3] == (at, at, 8)
    check(engine, charge(), at=at + 4 * STEP_US)
    assert engine.recent_rejections()[0][:3] == (at + 4 * STEP_US, at, 9)


def test_who_is_allowed_is_not_remembered(engine: Engine) -> None:
    check(engine, charge(), charge("x", "other"))
    engine.peek([charge()], HOUR)
    engine.check([charge("z")], now_us=HOUR, reject=True)
    assert engine.recent_rejections() == []


def test_only_the_charges_that_reject_are_remembered_and_none_without_a_label(engine: Engine) -> None:
    check(engine, charge())
    check(engine, charge(), charge("x", "other"), charge("y", "unlabelled", cost=2, usage=None))
    assert [each.counter for each in engine.recent_rejections()] == [f"login:{DIGEST}:f86400"]


def test_a_shadow_s_rejections_are_marked(engine: Engine) -> None:
    check(engine, charge(gating=False), times=2)
    (rejection,) = engine.recent_rejections()
    assert (rejection.shadow, rejection.rule, rejection.times) == (True, "login", 1)


def test_the_latest_come_first_so_many_and_of_one_rule(engine: Engine) -> None:
    for number in range(5):
        check(engine, charge(f"c{number}", "even" if number % 2 == 0 else "odd"), times=2, at=HOUR + number * STEP_US)
    assert [each.partition for each in engine.recent_rejections()] == ["c4", "c3", "c2", "c1", "c0"]
    assert [each.partition for each in engine.recent_rejections(2)] == ["c4", "c3"]
    assert [each.partition for each in engine.recent_rejections(rule="odd")] == ["c3", "c1"]


def test_times_are_kept_to_a_quarter_of_a_second_and_of_who_keeps_coming_to_one(engine: Engine) -> None:
    check(engine, charge(), times=2, at=HOUR + STEP_US + 1)
    assert engine.recent_rejections()[0][:3] == (HOUR + STEP_US, HOUR + STEP_US, 1)
    check(engine, charge(), at=HOUR + 4 * STEP_US)
    assert engine.recent_rejections()[0][:3] == (HOUR + STEP_US, HOUR + STEP_US, 2)
    check(engine, charge(), at=HOUR + 5 * STEP_US)
    check(engine, charge(), at=HOUR - STEP_US)
    assert engine.recent_rejections()[0][:3] == (HOUR + 5 * STEP_US, HOUR + STEP_US, 4), "a clock that runs back counts"


def test_a_flood_is_recorded_at_first_and_then_in_twenties(engine: Engine) -> None:
    check(engine, charge(), times=RECORDED_EXACTLY)
    (rejection,) = engine.recent_rejections()
    assert (rejection.times, rejection.is_estimate) == (RECORDED_EXACTLY - 1, False)
    check(engine, charge())
    assert engine.recent_rejections()[0].times == RECORDED_EXACTLY
    check(engine, charge(), at=HOUR + 1_000_000, times=RECORDED_ONE_IN - 1)
    assert engine.recent_rejections()[0].times == RECORDED_EXACTLY
    check(engine, charge(), at=HOUR + 2_000_000)
    assert engine.recent_rejections()[0][:3] == (HOUR + 2_000_000, HOUR, RECORDED_EXACTLY + RECORDED_ONE_IN)
    check(engine, charge(), at=HOUR + 60_000_000)
    assert engine.recent_rejections()[0].times == RECORDED_EXACTLY + RECORDED_ONE_IN + 1, "a minute later, each again"


def test_whoever_may_have_been_missed_has_an_estimate_and_nobody_else(engine: Engine) -> None:
    check(engine, charge("early"), times=2)
    check(engine, charge("other", "other"), times=2, at=HOUR + 1_000_000)
    check(engine, charge("many"), times=1 + RECORDED_EXACTLY, at=HOUR + 2_000_000)
    check(engine, charge("late"), times=2, at=HOUR + 120_000_000)
    assert {each.partition: each.is_estimate for each in engine.recent_rejections()} == {
        "early": True,
        "other": False,
        "many": True,
        "late": False,
    }


def test_an_estimate_stays_one_when_the_tier_of_the_caller_changes(engine: Engine) -> None:
    check(engine, charge(), times=1 + RECORDED_EXACTLY + RECORDED_ONE_IN)
    for later, is_estimate in ((1_000_000, True), (120_000_000, True), (HOUR_US + 120_000_000, False)):
        check(engine, charge(usage="login|pro"), at=HOUR + later)
        assert [(each.tier, each.is_estimate) for each in engine.recent_rejections()] == [("pro", is_estimate)]


def test_after_an_hour_of_peace_the_count_begins_anew(engine: Engine) -> None:
    check(engine, charge(), times=4)
    check(engine, charge(), at=HOUR + HOUR_US - STEP_US)
    assert engine.recent_rejections()[0][:3] == (HOUR + HOUR_US - STEP_US, HOUR, 4)
    check(engine, charge(), at=HOUR + 2 * HOUR_US - STEP_US)
    assert engine.recent_rejections()[0][:3] == (HOUR + 2 * HOUR_US - STEP_US, HOUR + 2 * HOUR_US - STEP_US, 1)


def test_rejections_by_several_rules_are_told_of_each(engine: Engine) -> None:
    """Whether alone or together, in whatever way the others have decided."""
    check(engine, charge("x", "one"), charge("y", "two"), times=2)
    check(engine, charge("x", "one"), at=HOUR + 1_000_000)
    check(engine, charge("x", "one"), charge("z", "two"), at=HOUR + 2_000_000)
    assert [(each.counter[:5], each.times, each.since_us) for each in engine.recent_rejections()] == [
        ("one:x", 3, HOUR),
        ("two:y", 1, HOUR),
    ]


def test_one_that_becomes_another_tier_s_or_is_enforced_is_told_as_it_was_last(engine: Engine) -> None:
    check(engine, charge(gating=False), times=3)
    check(engine, charge(usage="login|pro"), at=HOUR + 1_000_000)
    (rejection,) = engine.recent_rejections()
    assert (rejection.tier, rejection.shadow, rejection.times) == ("pro", False, 3)


def test_the_list_is_bounded_and_nobody_pushes_the_callers_of_other_rules_out(engine: Engine) -> None:
    for number in range(100):
        engine.check([charge(f"c{number}", cost=2)], now_us=HOUR + number * 60_000_000)
    for number in range(MAX_LISTED):
        engine.check([charge(f"s{number}", "flood", cost=2)], now_us=HOUR + (100 + number // 19) * 60_000_000)
    found = engine.recent_rejections(limit=10_000)
    assert len([each for each in found if each.rule == "login"]) == 100
    flood = [each.partition for each in found if each.rule == "flood"]
    assert "s999" in flood
    assert "s0" not in flood
    assert KEPT - 100 <= len(flood) < MAX_LISTED - 200


@pytest.mark.parametrize(
    ("sizes", "shares"),
    [([], []), ([3, 900], [3, 597]), ([400, 400], [300, 300]), ([1, 2, 700, 800], [1, 2, 298, 299]), ([700], [600])],
)
def test_who_has_many_leaves_room_for_others(sizes: list[int], shares: list[int]) -> None:
    assert shares_of([[0] * size for size in sizes], KEPT) == shares


def test_held_counts_are_counted_and_tell_of_nobody(engine: Engine) -> None:
    minute = HOUR // 60_000_000
    engine.check([], now_us=HOUR, counts=UsageCarry("id", ((minute, "login|free\nd", RECORDED_EXACTLY),)))
    assert engine.recent_rejections() == []
    check(engine, charge(cost=2))
    assert engine.recent_rejections() == [], "what was held counts to the first of a minute"


NAMED = f"login|free\nd\n\tlogin:{DIGEST}:f86400"


def test_what_a_process_has_rejected_by_itself_is_told_with_its_counts(engine: Engine) -> None:
    minute = HOUR // 60_000_000
    check(engine, charge(), times=2)
    held = UsageCarry("one", ((minute, NAMED, 7), (minute, "login|free\na", 3)))
    for _ in range(2):
        engine.check([], now_us=HOUR + 5_000_000, counts=held)
    (rejection,) = engine.recent_rejections()
    assert rejection == Rejection(HOUR + 5_000_000, HOUR, 8, "login|free", f"login:{DIGEST}:f86400")
    [batch] = engine.take_usage(now_us=HOUR + 60_000_000)
    assert [(count.rejected, count.allowed) for count in engine.read_usage(batch)] == [(8, 4)]


def test_what_comes_late_is_told_of_its_own_minute(engine: Engine) -> None:
    minute = HOUR // 60_000_000
    engine.check([], now_us=HOUR, counts=UsageCarry("one", ((minute - 5, NAMED.replace("\nd", "\nD"), 7),)))
    (rejection,) = engine.recent_rejections()
    assert rejection[:3] == (HOUR - 240_000_000 - STEP_US, HOUR - 240_000_000 - STEP_US, 7)
    check(engine, charge(), times=2)
    engine.check([], now_us=HOUR, counts=UsageCarry("two", ((minute - 3, NAMED, 1),)))
    (rejection,) = engine.recent_rejections()
    assert rejection[:3] == (HOUR, HOUR - 240_000_000 - STEP_US, 9), "the latest is not moved back"


@pytest.mark.parametrize(
    ("field", "calls", "is_estimate"),
    [(NAMED, 19, False), (NAMED, 20, True), ("login|free\nd", 1, True), ("login|free\na", 99, False)],
)
def test_held_counts_of_nobody_in_particular_make_estimates(
    engine: Engine, field: str, calls: int, *, is_estimate: bool
) -> None:
    check(engine, charge("x"), charge("y", "other"), times=2)
    engine.check([], now_us=HOUR, counts=UsageCarry("one", ((HOUR // 60_000_000, field, calls),)))
    assert engine.recent_rejections(rule="login")[-1].is_estimate is is_estimate
    assert not engine.recent_rejections(rule="other")[0].is_estimate


calls = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["r", "s t", "ü%s"]), st.booleans(), st.integers(0, 2)),
            min_size=1,
            max_size=3,
            unique_by=lambda each: each[:2],
        ),
        st.integers(1, 50),
        st.sampled_from([0, 1, 300_000, 1_000_000, 60_000_000, HOUR_US]),
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
        assert redis.recent_rejections() == memory.recent_rejections()
        now += pause
