"""Forecasts from recorded samples."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import comb

import pytest

from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.forecast.answer import CALLERS, REQUESTS, RuleForecast
from django_ratelimiter.forecast.evaluate import AFTER, BEFORE, NEWLY, NO_LONGER, NOTHING, Range, all_callers
from django_ratelimiter.forecast.samples import Samples
from django_ratelimiter.models import Tier, TierAssignment, UsageSample
from django_ratelimiter.rules.records import LimitRecord, RuleRecord
from django_ratelimiter.rules.ruleset import rule_from
from django_ratelimiter.usage.reports.coverage import Period
from django_ratelimiter.usage.times import now

from .traffic import record

pytestmark = pytest.mark.django_db

START = now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=30)
PERIOD = Period(START - timedelta(hours=2), START + timedelta(hours=6))
FIXED = "fixed_window"
HOUR = timedelta(hours=1)


def rule(**limits: Limit | list[Limit]) -> RuleRecord:
    """A rule; `others` = every other tier."""
    data = {"slug": "search", "name": "", "mode": "enforce", "methods": [], "path": "", "path_kind": "any"}
    data |= {"view_name": "", "scope": "", "partition_by": ["user"], "missing_partition": "skip", "cost": 1}
    data |= {"failure_policy": "local", "priority": 100, "message": "", "limits": []}
    several = {tier: each if isinstance(each, list) else [each] for tier, each in limits.items()}
    records = {
        None if tier == "others" else tier: tuple(LimitRecord(limit) for limit in each)
        for tier, each in several.items()
    }
    return replace(rule_from(data), limits=records)


def forecast(before: RuleRecord | None, after: RuleRecord, period: Period = PERIOD) -> RuleForecast:
    return Samples(before, after, period).forecast(is_change=before is not None)


def kinds(found: RuleForecast) -> set[str]:
    return {each.kind for each in found.blind}


def test_callers_and_requests_of_each_tier_are_added_up() -> None:
    record(START, {"a": [9, 2], "b": [4], "c": [1]})
    record(START + HOUR, {"a": [20], "d": [3]}, tier="pro")
    before = rule(free=Limit(10, 60, FIXED), pro=Limit(30, 60, FIXED))
    found = forecast(before, rule(free=Limit(3, 60, FIXED), others=Limit(10, 60, FIXED)))
    about = [each.about for what in (BEFORE, AFTER) for each in found.effect(what)]
    assert about == [0, 0, 32 + 16, 16 * (7 + 10)]
    assert (found.sampled, found.callers, found.requests) == (5, 80, 16 * (16 + 23))
    low, about, high = found.effect(NEWLY).callers
    assert low < about == 80 * found.share(CALLERS) == 80 * 3 / 5 < high
    assert found.share(REQUESTS) == pytest.approx(17 / 39)
    assert kinds(found) == {"tiers"}  # those of no tier were not limited


def test_callers_that_are_new_and_callers_that_are_freed() -> None:
    record(START, {"a": [9], "b": [0, 5, 5, 5]})
    found = forecast(rule(others=Limit(8, 60, FIXED)), rule(others=Limit(10, 3_600, FIXED)))
    assert [found.effect(what).callers.about for what in (NEWLY, NO_LONGER)] == [16, 16]


def test_nothing_is_new_where_limits_do_not_change() -> None:
    record(START, {"a": [9], "b": [3]})
    record(START, {"c": [9]}, tier="pro")
    before = rule(pro=Limit(2, 60, FIXED), others=Limit(8, 60, FIXED))
    found = forecast(before, rule(pro=Limit(2, 60, FIXED), others=Limit(2, 60, FIXED)))
    assert found.effect(NEWLY).callers.about == 32
    assert forecast(before, before).effect(NEWLY) == (NOTHING, NOTHING)


def test_top_callers_and_when_they_would_be_rejected() -> None:
    record(START, {"a": [1, 9], "b": [2], "c": [7]})
    top = forecast(rule(others=Limit(8, 60, FIXED)), rule(others=Limit(5, 60, FIXED))).tally.top
    rows = [(each.caller, each.requests, each.before, each.after, each.newly) for each in top]
    assert rows == [("a", 10, 1, 4, 3), ("c", 7, 0, 2, 2)]
    assert START + timedelta(seconds=60) < top[0].first < START + 2 * HOUR


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if not each.traits.holds_leases])
def test_range_includes_bursts_within_a_minute(algorithm: str) -> None:
    record(START, {"a": [30], "b": [3]})
    found = forecast(None, rule(others=Limit(10, 10, algorithm)))
    low, about, high = found.effect(AFTER).callers
    assert (low, about, high > 16) == (0, 0, True)
    assert found.effect(AFTER).requests.about == 0
    assert found.effect(AFTER).requests.high >= 16 * 20


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log"])
def test_several_limits_of_a_tier_are_judged_together(algorithm: str) -> None:
    record(START, {"a": [6, 6, 6], "b": [9], "c": [5]})
    found = forecast(None, rule(others=[Limit(8, 60, algorithm), Limit(15, 3_600, algorithm)]))
    assert found.effect(AFTER).callers.about == 32
    assert found.effect(AFTER).requests.about == 16 * (3 + 1)


def test_cost_and_rejections_that_count() -> None:
    record(START, {"a": [5]})
    assert forecast(None, replace(rule(others=Limit(4, 60, FIXED)), cost=3)).effect(AFTER).requests.about == 16 * 4
    counts = replace(rule(others=Limit(4, 30, "sliding_window_log")), count_refusals=True)
    record(START + HOUR, {"a": [60]})  # one a second: the window never empties again
    assert forecast(None, counts).effect(AFTER).requests.about == 16 * (60 - 4)


def test_counter_of_all_callers_is_counted_and_not_sampled() -> None:
    record(START, {"a": [9, 2]}, shares=10)
    shared = [replace(rule(others=Limit(quota, 60, FIXED)), partition_by=()) for quota in (110, 60)]
    assert forecast(None, shared[0]).answer() == "None of 110 requests would be rejected."
    found = forecast(shared[0], shared[1])
    assert found.answer() == "50 of 110 requests would be rejected. Now: 0."
    assert found.effect(NEWLY).requests == Range(50, 50, 50)
    assert [*found.excess(0.5, None)] == []
    assert [*found.excess(0.4, None)] == ["search: 45.5 % of the requests, more than 40 %."]


def told(quota: int, window: int = 60, algorithm: str = FIXED) -> str:
    return forecast(None, rule(others=Limit(quota, window, algorithm))).answer()


def test_answer_is_one_sentence() -> None:
    record(START, {f"c{number:02}": [2 + 5 * (number < 4)] for number in range(48)})
    for quota, algorithm, rejected in (
        (9, FIXED, "Probably 0, at most 61"),
        (6, FIXED, "About 64 (25 to 165)"),
        (1, FIXED, "About 768 (579 to 1,018)"),
        (6, "token_bucket", "Probably 0, at most 165"),
    ):
        assert told(quota, algorithm=algorithm) == f"{rejected} of about 768 callers would be rejected at least once."


def test_answer_compares_with_now() -> None:
    record(START, {"a": [9], "b": [1]})
    others, some, all_ = (rule(others=Limit(quota, 60, FIXED)) for quota in (20, 5, 0 + 1))
    for before, after, text in (
        (others, some, "Now: probably 0, at most 61."),
        (some, some, "Now it is the same."),
        (some, all_, "Now: about 16 (3 to 91)."),
    ):
        assert forecast(before, after).answer().endswith(text)


@pytest.mark.parametrize(
    ("quota", "rejected", "found"),
    [
        (20, 90, "probably 0, at most "),
        (20, 0, None),
        (10, 8 * 16, None),
        (10, 1_700, "about 128 ("),
        (2, 40, "about 1,"),
    ],
)
def test_answer_begins_with_a_check_that_differs(quota: int, rejected: int, found: str | None) -> None:
    record(START, {"a": [18], **{f"b{number}": [10] for number in range(9)}}, rejected=rejected)
    answer = forecast(rule(others=Limit(quota, 60, FIXED)), rule(others=Limit(9, 60, FIXED))).answer()
    said = (
        f"Do not rely on this: the rule has rejected {rejected:,} of 1,728 requests in fact, and by the same estimate "
    )
    said += str(found)
    assert answer.startswith(said) is (found is not None), answer
    assert "Do not rely" not in forecast(None, rule(others=Limit(9, 60, FIXED))).answer()  # another rule's counts


def test_requests_without_a_sample_are_not_known() -> None:
    record(START, {"": [3]})
    UsageSample.objects.all().delete()
    after = rule(others=Limit(1, 60, FIXED))
    text = "none of the 48 recorded requests is of a sampled caller; samples come a few minutes later"
    assert forecast(None, after).answer() == f"It is not known whom this would reject: {text}."
    fetched = replace(after, sync_interval=1.0)
    assert f"{text}: the rule keeps fetched units (sync_interval_ms), and only" in forecast(fetched, fetched).answer()


def test_nothing_recorded_is_not_known() -> None:
    found = forecast(None, rule(others=Limit(1, 60)))
    assert found.answer() == "It is not known whom this would reject: nothing is recorded in this time."
    assert (found.is_known, found.share(CALLERS)) == (False, 0)


BEFORE_IT = rule(free=Limit(5, 60, FIXED))


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (BEFORE_IT, None),
        (replace(BEFORE_IT, path="/x/", path_kind="prefix"), "others"),
        (replace(BEFORE_IT, partition_by=("ip",)), "others"),
        (replace(BEFORE_IT, charge_when="failure"), "outcome"),
        (rule(free=Limit(5, 60, "concurrency")), "duration"),
        (rule(free=Limit(5, 60, FIXED), gold=Limit(9, 60)), "tiers"),
    ],
)
def test_what_samples_do_not_show_makes_a_rule_not_known(after: RuleRecord, kind: str | None) -> None:
    record(START, {"a": [9]})
    assert kinds(forecast(BEFORE_IT, after)) == ({kind} if kind else set())


@pytest.mark.urls("tests.forecast.views")
@pytest.mark.parametrize(
    ("scope", "kind"), [("search", None), ("costly", None), ("computed", "cost"), ("after", "cost")]
)
def test_cost_that_code_computes_is_not_known(scope: str, kind: str | None) -> None:
    record(START, {"a": [9]})
    found = forecast(None, replace(rule(free=Limit(9, 60, FIXED)), scope=scope))
    assert kinds(found) == ({kind} if kind else set())
    assert found.effect(AFTER).requests.about == (16 * 6 if scope == "costly" else 0)


def test_sample_that_lacks_much_of_what_was_counted_is_not_known() -> None:
    record(START, {"a": [9]}, shares=40)
    found = forecast(BEFORE_IT, BEFORE_IT)
    assert "the sample stands for only 40 % of the requests that were counted" in found.answer()
    assert (kinds(found), found.is_known) == ({"incomplete"}, False)


def test_days_of_a_time_zone() -> None:
    """Midnight in Berlin is an hour or two before midnight in UTC."""
    midnight = datetime(2026, 6, 10, 22, tzinfo=UTC)
    record(midnight - timedelta(minutes=1), {"a": [4, 4]})
    berlin = Limit(5, None, FIXED, calendar="day", timezone="Europe/Berlin")
    period = Period(midnight - timedelta(days=2), midnight + timedelta(days=2))
    for limit, callers in ((berlin, 0), (Limit(5, None, FIXED, calendar="day"), 16)):
        assert forecast(None, rule(others=limit), period).effect(AFTER).callers.about == callers


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if not each.traits.holds_leases])
def test_other_quotas_reject_what_a_rule_with_them_rejects(algorithm: str) -> None:
    record(START, {f"c{number:02}": [number, number // 3, 0, number % 7] for number in range(1, 60, 4)})
    after = rule(free=Limit(20, 60, algorithm), others=Limit(1, 60))
    found = Samples(after, after, PERIOD).with_other_quotas()
    assert [each.limits["free"][0].limit.quota for each, _rejected in found] == [4, 10, 20, 40, 100]
    for changed, rejected in found:
        assert rejected == forecast(after, changed).tally.found(CALLERS, AFTER).about
    assert found[0][1] > found[2][1] > found[4][1] == 0


def test_multipliers_are_mentioned() -> None:
    record(START, {"a": [9]})
    TierAssignment.objects.create(tier=Tier.objects.create(slug="free"), api_key_hash="a" * 64, multiplier=2)
    after = rule(others=Limit(9, 60, FIXED))
    assert "Some callers have a multiplier" in " ".join(forecast(None, after).notes)
    assert "multiplier" not in " ".join(forecast(None, replace(after, partition_by=())).notes)


@pytest.mark.parametrize("rejected", [4, 40, 600])
def test_nineteen_of_twenty_ranges_contain_the_true_number_of_callers(rejected: int) -> None:
    """However many callers there are; calculated over all samples, each with its probability."""
    right = 0.0
    for found in range(rejected + 1):
        low, _about, high = all_callers(Range(found, found, found))
        right += comb(rejected, found) * 15 ** (rejected - found) / 16**rejected * (low <= rejected <= high)
    assert right > 0.93
