"""The system check that somebody collects usage."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from django_ratelimiter import checks
from django_ratelimiter.checks import collecting
from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion, UsageBatch

from .test_checks import ids

pytestmark = pytest.mark.django_db


@pytest.fixture
def _rule() -> None:
    """A rule that has been in force for three days."""
    rule = Rule.objects.create(slug="everything", name="Everything", mode="enforce")
    RuleLimit.objects.create(rule=rule, quota=5, window_seconds=60)
    RuleSetVersion.objects.create(number=1, epoch=1, snapshot={})
    RuleSetVersion.objects.update(created_at=timezone.now() - timedelta(days=3))


def collected(hours: float) -> None:
    UsageBatch.objects.create(batch_id=str(hours))
    UsageBatch.objects.filter(batch_id=str(hours)).update(collected_at=timezone.now() - timedelta(hours=hours))


@pytest.mark.usefixtures("_rule")
@pytest.mark.parametrize(("hours", "fires"), [((), True), ((25,), True), ((25, 23), False)])
def test_nothing_collected_for_a_day(hours: tuple[int, ...], fires: bool) -> None:
    for each in hours:
        collected(each)
    messages = checks.check_collecting()
    assert ids(messages) == ["W013"] * fires
    assert [message.msg for message in messages if "since 2" not in message.msg] == []


@pytest.mark.usefixtures("_rule")
def test_rules_of_today_have_time(settings: Any) -> None:
    RuleSetVersion.objects.update(created_at=timezone.now())
    assert checks.check_collecting() == []


@pytest.mark.usefixtures("_rule")
def test_without_redis_there_is_nothing_to_collect(settings: Any) -> None:
    settings.RATELIMITER = {"CACHE_ALIAS": None}
    assert checks.check_collecting() == []


def test_without_rules_there_is_nothing_to_collect() -> None:
    collected(25)
    assert checks.check_collecting() == []


@pytest.mark.usefixtures("_rule")
def test_silent_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OperationalError

    monkeypatch.setattr(collecting, "_since", fail)
    assert checks.check_collecting() == []
