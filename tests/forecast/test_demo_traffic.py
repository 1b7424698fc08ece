"""The invented traffic of the demo: whoever tries it sees a full forecast, and proposals."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from django_ratelimiter.forecast.samples.advice import advise
from django_ratelimiter.forecast.samples.forecast import Forecast
from django_ratelimiter.forecast.samples.periods import last_week, yesterday
from django_ratelimiter.models import UsageSample
from django_ratelimiter.rules import cache

from .test_samples import FIXED, Limit, replace, rule

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def test_every_period_has_samples() -> None:
    from example_project import catalogue
    from example_project.management.commands.demo_traffic import Command

    for _ in range(2):
        call_command(Command(), verbosity=0)
    count = UsageSample.objects.count()
    assert count > 1_000
    for each in catalogue.RULES:
        if each.partition_by:
            after = replace(rule(others=Limit(3, 60, FIXED)), slug=each.slug)
            for period in (yesterday().period, last_week().period):
                found = Forecast(None, after, period)
                assert found.sampled >= 12
                assert found.requests
                assert found.by_tier
            assert advise(after, last_week().period, 0.01).proposals


def test_what_is_recorded_is_what_the_rules_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the forecast, which compares itself with that, would tell its first reader not to believe it."""
    from example_project.management.commands import demo_data
    from example_project.management.commands.demo_traffic import Command as Traffic

    monkeypatch.setattr(demo_data, "_people", lambda tiers: None)  # whose tokens are of another app
    call_command(demo_data.Command(), verbosity=0)
    call_command(Traffic(), verbosity=0)
    rejected = 0
    for each in cache.current_rules().rules:
        if each.partition_by:
            found = Forecast(each, each, last_week().period)
            recorded = sum(figures.rejected + figures.shadow_rejected for figures in found.recorded.values())
            assert sum(tier.before.requests.low for tier in found.by_tier) <= recorded
            assert recorded <= sum(tier.before.requests.high for tier in found.by_tier)
            rejected += recorded
    assert rejected > 1_000
