"""The overview names rules whose one counter all callers have used up, and says of a quiet site that it is quiet."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

import pytest
import redis
from django.test import Client

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, RuleLimit, Tier, UsageBatch, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.reports.coverage import HOUR
from django_ratelimiter.usage.times import now, stored
from tests.admin.usage.test_pages import count

from ..pages import shown
from .test_overview import OVERVIEW, text_of

pytestmark = pytest.mark.django_db

EVERYBODY = digest("")


@pytest.fixture
def site_wide(free: Tier) -> Rule:
    rule = Rule.objects.create(slug="site", name="Whole site", mode="enforce", path="/", path_kind="prefix")
    for tier, quota in ((None, 10), (free, 5)):
        RuleLimit.objects.create(
            rule=rule, tier=tier, quota=quota, window_seconds=Decimal(3600), algorithm="sliding_window_counter"
        )
    cache.invalidate()
    count(timedelta(minutes=2), rule="site", rejected=3)
    return rule


def spend(units: int) -> None:
    get_engine().check([Charge(f"site:{EVERYBODY}", Limit(10, 3600), cost=units)])


@pytest.mark.parametrize(("spent", "is_named"), [(4, False), (5, True), (10, True)])
def test_a_rule_that_all_have_used_up_is_named(
    admin_client: Client, site_wide: Rule, spent: int, is_named: bool
) -> None:
    """By the lowest limit of its tiers, with the page where the counter is seen."""
    spend(spent)
    response = admin_client.get(OVERVIEW)
    found = "error The whole site is at its limit, by the rule: Whole site Until " in text_of(response)
    assert found is is_named
    assert (f"?digest={EVERYBODY}&rule=site" in shown(response)) is is_named


@pytest.mark.parametrize("changes", [{"mode": "shadow"}, {"partition_by": ["ip"]}])
def test_others_are_not(admin_client: Client, site_wide: Rule, changes: dict[str, object]) -> None:
    spend(10)
    Rule.objects.update(**changes)
    cache.invalidate()
    assert "at its limit" not in text_of(admin_client.get(OVERVIEW))


def test_it_is_named_before_its_usage_is_collected_and_by_what_it_is_for(admin_client: Client, site_wide: Rule) -> None:
    UsageBucket.objects.all().delete()
    Rule.objects.update(path="/api/", methods=["POST"])
    cache.invalidate()
    spend(10)
    assert "error POST /api/ is at its limit, by the rule: Whole site" in text_of(admin_client.get(OVERVIEW))


@pytest.mark.parametrize("waits", [False, True])
def test_a_quiet_site_is_told_from_a_late_collector(
    admin_client: Client, site_wide: Rule, redis_client: redis.Redis, *, waits: bool
) -> None:
    batch = UsageBatch.objects.create(batch_id="1:x")
    UsageBatch.objects.filter(pk=batch.pk).update(collected_at=stored(now() - HOUR))
    if waits:
        redis_client.sadd("{rl:0}:batches", "1000:0:x")
    text = text_of(admin_client.get(OVERVIEW))
    told = re.search(r"Latest counts arrived 1\shour ago(; nothing is waiting)? ", text)
    assert told is not None
    assert (told[1] is None) is waits
