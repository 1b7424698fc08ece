"""The invented traffic of the demo: whoever tries it sees a full forecast."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db.models import Count, F, Sum

from django_ratelimiter.forecast.evaluate import BEFORE
from django_ratelimiter.forecast.samples import Samples, read_period
from django_ratelimiter.models import TopCaller, TopPartition, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.collector.partitions import MAX_PARTITIONS
from django_ratelimiter.usage.reports.report import Report

#: Of all tiers: the rejections of a rule in shadow are those of its list of top callers.
SUMS = {"a": Sum("allowed"), "r": Sum(F("rejected") + F("shadow_rejected"))}

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def test_what_is_recorded_is_what_the_rules_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the forecast, which compares itself with that, would tell its first reader not to believe it."""
    from example_project import catalogue
    from example_project.management.commands import demo_data
    from example_project.management.commands.demo_traffic import Command as Traffic

    monkeypatch.setattr(demo_data, "_people", lambda tiers: None)  # whose tokens are of another app
    monkeypatch.setattr(demo_data, "_accounts", lambda: None)
    call_command(demo_data.Command(), verbosity=0)
    call_command(Traffic(), verbosity=0)
    rejected = 0
    for each in cache.current_rules().rules:
        if each.partition_by and each.slug != catalogue.CUSTOMER_RULE.slug:
            for _name, period in map(read_period, ("yesterday", "7d")):
                found = Samples(each, each, period).forecast()
                assert found.sampled >= 12
            assert found.rejected is not None
            low, _about, high = found.effect(BEFORE).requests
            assert low <= found.rejected <= high
            rejected += found.rejected
    assert rejected > 1_000
    compare_top_callers_with_totals()


def compare_top_callers_with_totals() -> None:
    """They add up, but for hours with more than are kept: of these the list has fewer."""
    hours = UsageBucket.objects.filter(granularity="hour").values_list("rule_slug", "start")
    totals = {(slug, start): figures for slug, start, *figures in hours.annotate(**SUMS)}
    top = TopPartition.objects.filter(granularity="hour").values_list("rule_slug", "start")
    compared = 0
    for slug, start, allowed, rejected, callers in top.annotate(Sum("allowed"), Sum("rejected"), Count("pk")):
        if callers < MAX_PARTITIONS:
            assert totals[slug, start] == [allowed, rejected]
            compared += 1
    assert compared > 100
    assert {*TopCaller.objects.values_list("identity", flat=True)} == {"user", "ip", "api_key"}
    week = Report(read_period("7d")[1])
    assert week.counts_once
    assert week.together.requests == sum(each.figures.requests for each in week.totals)  # none matches two rules
