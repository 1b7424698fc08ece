"""Forecasts from recorded samples, also of callers whose limits are multiplied."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType

from django_ratelimiter.engine import Limit
from django_ratelimiter.forecast.samples import estimates
from django_ratelimiter.forecast.samples.answer import answer
from django_ratelimiter.forecast.samples.doubts import doubts
from django_ratelimiter.forecast.samples.forecast import Forecast
from django_ratelimiter.forecast.samples.kindred import recorded_by
from django_ratelimiter.forecast.samples.periods import read_period
from django_ratelimiter.models import Rule, Tier, TierAssignment, UsageBucket, UsageSample
from django_ratelimiter.rules.records import LimitRecord, RuleRecord
from django_ratelimiter.rules.ruleset import rule_from
from django_ratelimiter.usage.reports.coverage import Period
from django_ratelimiter.usage.times import now, stored

from .traffic import record

pytestmark = pytest.mark.django_db

START = now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=30)
PERIOD = Period(START - timedelta(hours=2), START + timedelta(hours=6))
FIXED = "fixed_window"

HOUR = timedelta(hours=1)
HAVE, HAD = "Some callers have a multiplier", "were changed or deleted"


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


def counted(found: Forecast) -> dict[str, tuple[int, int, int, int]]:
    """By tier: the sampled callers that both rules reject, in sixteenths of the guess, and the requests."""
    return {
        each.tier: (
            round(each.before.callers.about / 16),
            round(each.after.callers.about / 16),
            round(each.before.requests.about),
            round(each.after.requests.about),
        )
        for each in found.by_tier
    }


def test_callers_and_requests_by_tier() -> None:
    record(START, {"a": [9, 2], "b": [4], "c": [1]})
    record(START + timedelta(hours=1), {"a": [20], "d": [3]}, tier="pro")
    before = rule(free=Limit(10, 60, FIXED), pro=Limit(30, 60, FIXED))
    found = Forecast(before, rule(free=Limit(3, 60, FIXED), others=Limit(10, 60, FIXED)), PERIOD)
    assert counted(found) == {"free": (0, 2, 0, 16 * 7), "pro": (0, 1, 0, 16 * 10)}
    assert (found.sampled, found.callers, found.requests) == (5, 80, 16 * (16 + 23))
    assert found.share_of_callers.about == 3 / 5
    assert found.share_of_callers.low < 3 / 5 < found.share_of_callers.high
    assert found.share_of_requests.about == pytest.approx(17 / 39)


def test_who_is_freed_and_who_is_new() -> None:
    record(START, {"a": [9], "b": [0, 5, 5, 5]})
    [tier] = Forecast(rule(others=Limit(8, 60, FIXED)), rule(others=Limit(10, 3_600, FIXED)), PERIOD).by_tier
    assert (tier.newly.about, tier.no_longer.about) == (16, 16)


def test_hours() -> None:
    record(START, {"a": [9]}, shares=20)
    record(START + timedelta(hours=3), {"a": [6]}, shares=20)
    found = Forecast(rule(others=Limit(8, 60, FIXED)), rule(others=Limit(5, 60, FIXED)), PERIOD)
    hours = {
        each.start: (each.before.about, each.after.about, each.requests) for each in found.by_hour if each.requests
    }
    assert hours == {START: (20, 80, 180), START + timedelta(hours=3): (0, 20, 120)}
    assert len(found.by_hour) == 8


def test_hours_of_a_window_of_a_day() -> None:
    """What is beyond its quota is rejected when it comes, and not when the day begins."""
    midnight = (START + timedelta(days=1)).replace(hour=0)
    record(midnight, {"a": [4]}, shares=20)
    record(midnight + timedelta(hours=2), {"a": [3, 5]}, shares=20)
    record(midnight + timedelta(hours=3), {"a": [6]}, shares=20)
    period = Period(midnight, midnight + timedelta(hours=4))
    found = Forecast(rule(others=Limit(12, 86_400, FIXED)), rule(others=Limit(5, 86_400, FIXED)), period)
    hours = [(each.before.about, each.after.about, each.requests) for each in found.by_hour if each.requests]
    assert hours == [(0, 0, 80), (0, 140, 160), (120, 120, 120)]
    [tier] = found.by_tier
    assert (tier.before.requests.about, tier.after.requests.about) == (120, 260)
    assert [each.first_at for each in found.top] == [midnight + timedelta(hours=2)]


def test_the_first_callers_and_when_they_would_have_met_it() -> None:
    record(START, {"a": [1, 9], "b": [2], "c": [7]})
    found = Forecast(rule(others=Limit(8, 60, FIXED)), rule(others=Limit(5, 60, FIXED)), PERIOD).top
    rows = [(each.who, each.peak, each.before, each.after, each.first_at) for each in found]
    minute = timedelta(minutes=1)
    assert rows == [("a", 9, 1, 4, START + minute), ("c", 7, 0, 2, START), ("b", 2, 0, 0, None)]


def told(quota: int, window: int = 60, algorithm: str = FIXED) -> str:
    return answer(Forecast(None, rule(others=Limit(quota, window, algorithm)), PERIOD))


def test_the_answer_is_one_sentence() -> None:
    record(START, {f"c{number:02}": [2 + 5 * (number < 4)] for number in range(48)})
    assert told(9) == "Nobody of 48 sampled callers (of about 768) would be rejected."
    assert told(6) == "About 8 in 100 callers would be rejected at least once, at worst 20."
    assert told(1) == "All 48 sampled callers (of about 768) would be rejected at least once."
    probably = "Probably nobody of 48 sampled callers (of about 768) would be rejected, at worst 4 of them."
    assert told(8, algorithm="token_bucket") == probably
    record(START + HOUR, {f"d{number:04}": [1] for number in range(2_000)})
    assert told(6) == "About 2 in 1,000 callers would be rejected at least once, at worst 6."


def test_the_answer_about_one_caller() -> None:
    record(START, {"a": [7]})
    one = "The one sampled caller (of about 16) would "
    assert told(14) == f"{one}not be rejected."
    assert told(9, algorithm="token_bucket") == f"{one}probably not be rejected."
    assert told(6) == f"{one}be rejected at least once."


def test_the_answer_compares_with_now() -> None:
    record(START, {"a": [9], "b": [1]})
    others, some, all_ = (rule(others=Limit(quota, 60, FIXED)) for quota in (20, 5, 1))
    for before, text in (
        (others, "Now: nobody."),
        (all_, "Now it is the same."),
        (some, "Now: about 50 in 100 callers."),
    ):
        assert answer(Forecast(before, all_ if before is not others else some, PERIOD)).endswith(text)


def test_the_answer_begins_with_rejections_that_the_sample_does_not_explain() -> None:
    record(START, {"a": [9], "b": [1]}, rejected=90)
    now_, then, fewer = (rule(others=Limit(quota, 60, FIXED)) for quota in (20, 10, 5))
    text = "90 of 160 requests were rejected, some or all of callers that the sample does not hold, or by other limits"
    nobody = "Nobody of 2 sampled callers (of about 32) would be rejected."
    assert answer(Forecast(now_, then, PERIOD)) == f"{text} than now. {nobody} Now: nobody in the sample."
    assert answer(Forecast(now_, now_, PERIOD)) == f"{text} than now. {nobody} Now it is the same."
    assert answer(Forecast(None, then, PERIOD)) == nobody  # the counts are another rule's
    record(START + HOUR, {f"d{number:03}": [6] for number in range(200)}, rejected=16 * 900)
    assert answer(Forecast(fewer, then, PERIOD)).startswith("14,490 of ")  # and that of many is not


@pytest.mark.parametrize(("rejected", "differs"), [(8 * 16, False), (40, True)])
def test_the_answer_begins_with_a_check_that_differs_much(rejected: int, differs: bool) -> None:
    record(START, {"a": [18], **{f"b{number}": [10] for number in range(9)}}, rejected=rejected)
    said = f"Do not rely on this: {rejected} requests were rejected; by this sample it would be about 128 ("
    found = Forecast(rule(others=Limit(10, 60, FIXED)), rule(others=Limit(9, 60, FIXED)), PERIOD)
    assert answer(found).startswith(said) is differs


def test_samples_that_come_later_are_awaited() -> None:
    record(minute := now().replace(second=0, microsecond=0) - timedelta(minutes=2), {"": [3]})
    UsageSample.objects.all().delete()
    recent = Period(minute - HOUR, minute + HOUR)
    text = "the samples of the 48 recorded requests may still be missing. They come a few minutes after the counts."
    assert text in answer(Forecast(None, rule(others=Limit(1, 60, FIXED)), recent))
    UsageBucket.objects.update(start=stored(minute - timedelta(minutes=30)))
    assert "there is no sample of the 48" in answer(Forecast(None, rule(others=Limit(1, 60, FIXED)), recent))


def test_the_answer_knows_what_it_cannot_know() -> None:
    unknown = "It is not known whom this would reject: "
    assert told(1) == unknown + "nothing is recorded in this time."
    record(START, {"a": [9], "b": [1]})
    assert told(1, algorithm="concurrency") == unknown + "requests in progress at once are not recorded."
    limits = [Limit(1, 60, "concurrency"), Limit(20, 60, FIXED)]
    in_part = "Nobody of 2 sampled callers (of about 32) would be rejected. But not all is recorded: "
    assert answer(Forecast(None, rule(others=limits), PERIOD)).startswith(in_part)


@pytest.mark.parametrize("window", [1, 40, 60, 80, 90, 600, 3_600])
@pytest.mark.parametrize("burst", [None, 3, 7, 90])
def test_the_chart_and_the_answer_count_the_same_callers(window: int, burst: int | None) -> None:
    record(START, {f"c{number:02}": [number, number // 3, 0, number % 7] for number in range(1, 60)})
    for quota in range(1, 100, 3):
        limit = Limit(quota, window, FIXED) if burst is None else Limit(quota, window, "token_bucket", burst=burst)
        found = Forecast(None, rule(others=limit), PERIOD)
        rates = found.rates(None, limit)
        (_most, even, _safe), _share = found.rejected_callers(1)
        assert (len(rates), sum(rate > quota for rate in rates)) == (found.sampled, even)


def test_several_limits_of_a_tier() -> None:
    record(START, {"a": [6, 6, 6], "b": [9], "c": [5]})
    both = rule(others=[Limit(8, 60, FIXED), Limit(15, 3_600, FIXED)])
    [tier] = Forecast(None, both, PERIOD).by_tier
    assert (tier.after.callers.about, tier.after.requests.low >= 0) == (32, True)
    assert tier.after.requests.about == 16 * 3  # the limit that rejects more of them


def test_a_burst_within_a_minute_is_a_range() -> None:
    record(START, {"a": [30], "b": [3]})
    [tier] = Forecast(None, rule(others=Limit(10, 10, FIXED)), PERIOD).by_tier
    assert tier.after.callers.about == 0
    assert tier.after.callers.high > 16
    assert tier.after.requests.low == tier.after.requests.about == 0
    assert tier.after.requests.high >= 16 * 20


def test_a_rule_that_is_shared_is_counted_and_not_sampled() -> None:
    record(START, {"a": [9]}, shares=3)
    shared = replace(rule(others=Limit(20, 60, FIXED)), partition_by=())
    found = Forecast(None, shared, PERIOD)
    [tier] = found.by_tier
    assert (tier.after.requests, tier.after.callers) == (estimates.exact((7, 7, 7)), estimates.exact((1, 1, 1)))
    assert found.share_of_callers.about == 1
    assert "share one counter" in " ".join(doubts(found))


def test_the_answer_for_a_shared_counter_is_about_requests() -> None:
    record(START, {"": [9, 2]}, shares=10)
    shared = [replace(rule(others=Limit(quota, 60, FIXED)), partition_by=()) for quota in (110, 60)]
    assert answer(Forecast(None, shared[0], PERIOD)) == "None of 110 requests would be rejected."
    text = "50 of 110 requests would be rejected. Now: 0."
    assert answer(Forecast(shared[0], shared[1], PERIOD)) == text


def test_nothing_recorded() -> None:
    found = Forecast(None, rule(others=Limit(1, 60)), PERIOD)
    assert (found.sampled, found.by_tier, found.top) == (0, [], [])
    assert found.share_of_callers == found.share_of_requests == estimates.NOTHING


def test_what_samples_cannot_know() -> None:
    record(START, {"a": [9]}, shares=40)
    before = rule(free=Limit(5, 60, FIXED))
    after = replace(rule(free=Limit(5, 1, FIXED), pro=Limit(5, 60, "concurrency"), gold=Limit(9, 60)), path="/x/")
    text = " ".join(doubts(Forecast(before, replace(after, charge_when="failure", count_refusals=True), PERIOD)))
    for words in ("what the rule applies to", "at once are not recorded", "under a minute", "outcome", "keep trying"):
        assert words in text
    for words in ("1 caller only", "40 % of the requests", "nothing is known about them: gold"):
        assert words in text
    assert doubts(Forecast(before, before, PERIOD))[0].startswith("The sample holds 1 caller")


def test_days_of_a_time_zone() -> None:
    """Midnight in Berlin is an hour or two before midnight in UTC."""
    midnight = datetime(2026, 6, 10, 22, tzinfo=UTC)
    record(midnight - timedelta(minutes=1), {"a": [4, 4]})
    berlin = Limit(5, None, FIXED, calendar="day", timezone="Europe/Berlin")
    period = Period(midnight - timedelta(days=2), midnight + timedelta(days=2))
    for limit, callers in ((berlin, 0), (Limit(5, None, FIXED, calendar="day"), 16)):
        [tier] = Forecast(None, rule(others=limit), period).by_tier
        assert tier.after.callers.about == callers


def test_the_range_of_a_share() -> None:
    """Of no caller in a thousand: 3.8 in a thousand at most, by Wilson."""
    low, about, high = estimates.share_of_callers((0, 0, 0), 1_000)
    assert (low, about, round(high, 4)) == (0, 0, 0.0038)
    low, about, high = estimates.share_of_callers((8, 10, 14), 1_000)
    assert about == 0.01
    assert round(low, 4) == 0.0041
    assert round(high, 4) == 0.0234
    assert estimates.share_of_callers((0, 0, 0), 0) == estimates.NOTHING


def test_a_request_beyond_several_limits_is_one_in_its_hour() -> None:
    record(START, {"a": [20]}, shares=20)
    both = rule(others=[Limit(5, 60, FIXED), Limit(8, 3_600, FIXED)])
    [hour] = [each for each in Forecast(None, both, PERIOD).by_hour if each.requests]
    assert (hour.before, hour.after) == (estimates.NOTHING, estimates.Range(300, 300, 400))
    assert estimates.of_several([], 5) == estimates.NOTHING


def test_a_quota_beyond_what_databases_can_hold() -> None:
    record(START, {"a": [9]})
    [caller] = Forecast(None, rule(others=Limit(2**48 - 1, 0.001, FIXED)), PERIOD).top
    assert (caller.peak, caller.after) == (9, 0)


@pytest.mark.parametrize("day", ["9999-12-31", "0001-01-01"])
def test_a_day_too_far_away_is_no_period(day: str) -> None:
    with pytest.raises(ValueError, match="is not a period"):
        read_period(day)


@pytest.mark.parametrize(
    ("new", "is_alike"),
    [
        ({"path_kind": "any", "path": "", "view_name": "hello"}, True),
        ({"path_kind": "route", "path": "hello/", "view_name": ""}, True),  # the same view in another way
        ({"path_kind": "route", "path": "items/<int:item>/", "view_name": ""}, False),
        ({"path_kind": "prefix", "path": "/hello/", "view_name": ""}, False),  # other paths as well
        ({"path_kind": "any", "path": "", "view_name": "hello", "partition_by": ["ip"]}, False),
        ({"path_kind": "any", "path": "", "view_name": "gone"}, False),
    ],
)
def test_a_rule_for_the_same_views_has_recorded_the_requests_of_a_new_one(new: dict[str, Any], is_alike: bool) -> None:
    recording = Rule(slug="hello", view_name="hello", partition_by=["user"])
    found = recorded_by(Rule(**{"slug": "new", "partition_by": ["user"], **new}), [recording])
    assert (found is recording) is is_alike


def grant(multiplier: str = "2", **times: Any) -> TierAssignment:
    tier, _ = Tier.objects.get_or_create(slug="free")
    stored_times = {name: stored(at) for name, at in times.items()}
    return TierAssignment.objects.create(tier=tier, api_key_hash="a" * 64, multiplier=multiplier, **stored_times)


def said(period: Period = PERIOD, partition_by: tuple[str, ...] = ("ip",)) -> str:
    changed = replace(rule(others=Limit(9, 60, FIXED)), partition_by=partition_by)
    return " ".join(doubts(Forecast(None, changed, period)))


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        ({}, True),
        ({"starts_at": PERIOD.start + HOUR, "ends_at": PERIOD.start + 2 * HOUR}, True),
        ({"ends_at": PERIOD.start + HOUR}, True),
        ({"starts_at": PERIOD.end - HOUR}, True),
        ({"ends_at": PERIOD.start}, False),
        ({"starts_at": PERIOD.end}, False),
    ],
)
def test_a_multiplier_counts_if_it_was_in_force_in_the_period(times: dict[str, Any], counts: bool) -> None:
    grant(**times)
    assert (HAVE in said()) is counts
    assert HAD not in said()


def test_a_multiplier_does_not_count_for_a_counter_that_all_callers_share() -> None:
    grant()
    assert HAVE not in said(partition_by=())


def test_an_assignment_without_a_multiplier_is_no_doubt() -> None:
    grant("1")
    assert HAVE not in said()


@pytest.mark.parametrize(
    ("flag", "hours", "counts"), [(DELETION, 1, True), (CHANGE, 1, True), (ADDITION, 1, False), (DELETION, -1, False)]
)
def test_what_was_changed_or_deleted_since_is_not_known(flag: int, hours: int, counts: bool) -> None:
    log(flag, hours)
    assert (HAD in said()) is counts


def test_one_sentence_is_enough() -> None:
    grant()
    log(DELETION, 1)
    assert HAVE in said()
    assert HAD not in said()


def log(flag: int, hours: int) -> None:
    LogEntry.objects.create(
        user=User.objects.create(username="ada"),
        content_type=ContentType.objects.get_for_model(TierAssignment),
        object_id="1",
        object_repr="x",
        action_flag=flag,
        action_time=stored(PERIOD.start + hours * HOUR),
    )
