"""Limits that are proposed from recorded samples."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError
from django.utils.timezone import localtime

from django_ratelimiter.forecast.samples.advice import Advice, advise
from django_ratelimiter.models import Rule, RuleLimit, TopPartition
from django_ratelimiter.usage.reports.coverage import Period

from .test_samples import FIXED, PERIOD, START, rule
from .traffic import advised, record

pytestmark = pytest.mark.django_db

ATTACK = START - timedelta(days=3)


def rows(advice: Advice) -> list[tuple[Any, ...]]:
    return [(each.tier, each.window, each.quota, each.burst, each.above, each.is_certain) for each in advice.proposals]


def test_no_more_than_the_share_is_above() -> None:
    """The busiest 2 of 200 may be: then the third decides, rounded up to two digits."""
    record(START, {f"caller-{number:03}": [number] for number in range(1, 201)})
    found = advise(rule(), PERIOD, 0.01)
    assert rows(found) == [("free", width, 200, None, 0, True) for width in (60, 3_600, 86_400)]
    found = advise(rule(), PERIOD, 0.1)
    assert rows(found)[0] == ("free", 60, 180, None, 20, True)
    assert found.proposals[0].busiest == (100, 180, 198, 200)
    assert found.proposals[0].share.low < 0.1 == found.proposals[0].share.about
    assert (found.sampled, found.callers, round(found.days, 2)) == (200, 3_200, 0.33)


def test_a_bucket_for_those_who_come_in_bursts() -> None:
    record(START, {"a": [30, 0, 40, 20], "b": [3]})
    found = advise(rule(), PERIOD, 0.01)
    assert rows(found)[-1] == ("free", 3_600, 90, 40, 0, False)


def test_what_each_would_have_rejected_of_an_attack() -> None:
    record(START, {"a": [9], "b": [20]})
    record(ATTACK, {"b": [20], "bot": [100, 100]})
    found = advise(rule(), PERIOD, 0.01, Period(ATTACK, ATTACK + timedelta(hours=2)))
    minute, hour, *_rest = found.proposals
    assert minute.attack_share is not None
    assert (minute.quota, minute.attack_share.about, minute.attack_requests) == (20, 0.5, 16 * 160)
    assert (hour.quota, hour.attack_requests) == (20, 16 * 180)


def test_an_attack_within_the_period_raises_no_proposal() -> None:
    record(START, {"a": [9], "b": [20]})
    record(START + timedelta(hours=2), {"bot": [100]})
    attack = Period(START + timedelta(hours=2), START + timedelta(hours=3))
    assert advise(rule(), PERIOD, 0.01).proposals[0].quota == 100
    found = advise(rule(), PERIOD, 0.01, attack)
    assert (found.proposals[0].quota, round(24 * found.days)) == (20, 7)
    assert found.proposals[0].attack_requests == 16 * 80


def test_the_largest_of_all_is_known_where_it_was_no_sample() -> None:
    record(START, {"a": [9]})
    TopPartition.objects.create(
        rule_slug="search", granularity="hour", start=START, partition="x", allowed=700, rejected=77
    )
    assert advise(rule(), PERIOD, 0.01).largest == 777


def test_the_command() -> None:
    row = Rule.objects.create(slug="search", name="Search", view_name="hello", partition_by=["user"], mode="shadow")
    RuleLimit.objects.create(rule=row, quota=5, window_seconds=60, algorithm=FIXED)
    assert advised("search") == "No caller of search was sampled (the last 7 days).\n"
    record(START, {"a": [9], "b": [20]})
    text = advised("search", "--period", localtime(START).date().isoformat())
    for words in ("2 sampled callers", "free: 20 per minute", "p50 9, p90 20", "Too few callers", "under a minute"):
        assert words in text
    found = json.loads(advised("search", "--json"))
    assert (found["sampled"], found["proposals"][0]["busiest"]["largest"]) == (2, 20)
    assert "advise search" in advised("--view", "hello")
    assert "no rule matches" in advised("--view", "item")
    for wrong in (["nothing"], ["search", "--period", "soon"], ["search", "--share", "0"], ["--view", "nobody"]):
        with pytest.raises(CommandError):
            advised(*wrong)
