"""A caller's page under hundreds of rules."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache

from .page import CALLER

pytestmark = pytest.mark.django_db


@pytest.fixture
def many(ann: User) -> None:
    tier = Tier.objects.create(slug="big", name="Big", rank=9)
    for number in range(500):
        rule = Rule(slug=f"rule-{number}", name=f"Rule {number}", mode="enforce", partition_by=["user"])
        rule.save()
    RuleLimit.objects.bulk_create(
        [RuleLimit(rule=rule, quota=10, window_seconds=Decimal(60)) for rule in Rule.objects.all()]
    )
    TierAssignment.objects.bulk_create(
        [TierAssignment(tier=tier, partition=f"header:X-Org:{number}") for number in range(2_000)]
    )
    TierAssignment.objects.create(tier=tier, user=ann)
    cache.invalidate()


def test_five_hundred_rules_take_one_call_and_few_queries(
    admin_client: Client,
    many: None,
    ann: User,
    redis_client: redis.Redis,
    settings: Any,
    django_assert_max_num_queries: Any,
) -> None:
    # The middleware asks by itself for the version, once in this time.
    settings.RATELIMITER = {**settings.RATELIMITER, "VERSION_CHECK_INTERVAL": 3_600}
    page = f"{CALLER}?kind=user&value={ann.pk}"
    admin_client.get(page)
    before = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    with django_assert_max_num_queries(20):
        response = admin_client.get(page)
    assert len(response.context["counters"]) == 500
    assert redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
