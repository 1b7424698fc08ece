"""Rules for the API to tell of, people who ask, and usage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.times import stored

MakeRule = Callable[..., Rule]

KEY = "key-of-carol"


@pytest.fixture
def make_rule(db: None) -> MakeRule:
    """Make a rule: `make_rule("slug", {tier or None: [fields of a limit, …]}, **fields of the rule)`."""

    def make(slug: str, limits: dict[Tier | None, list[dict[str, Any]]] | None = None, **fields: Any) -> Rule:
        usual = {None: [{"quota": 5}]}
        with cache.editing():
            rule = Rule.objects.create(slug=slug, name=f"Rule {slug}", **{"mode": "enforce", **fields})
            for tier, rows in (usual if limits is None else limits).items():
                for row in rows:
                    options = {"algorithm": "token_bucket", "window_seconds": 86_400, **row}
                    RuleLimit.objects.create(rule=rule, tier=tier, **options)
        return rule

    return make


@pytest.fixture
def free(db: None) -> Tier:
    """The tier of whoever has authenticated."""
    with cache.editing():
        return Tier.objects.create(slug="free", name="Free", rank=1, default_for="authenticated")


@pytest.fixture
def pro(db: None) -> Tier:
    """A tier that is assigned to the API key."""
    with cache.editing():
        tier = Tier.objects.create(slug="pro", name="Professional", rank=2)
    TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key(KEY))
    return tier


@pytest.fixture
def ann(db: None) -> User:
    return User.objects.create(username="ann")


@pytest.fixture
def as_ann(ann: User) -> Client:
    """A client that ann has logged in with."""
    client = Client()
    client.force_login(ann)
    return client


@pytest.fixture
def as_staff(db: None) -> Client:
    """A client of somebody who may view usage reports."""
    user = User.objects.create(username="staff", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_usage_report"))
    client = Client()
    client.force_login(user)
    return client


def moment(ago: timedelta) -> datetime:
    """So long ago, at the start of a minute, as models keep it."""
    return stored(timezone.now().replace(second=0, microsecond=0) - ago)


def bucket(ago: timedelta = timedelta(minutes=5), rule: str = "rule", tier: str = "free", **fields: Any) -> UsageBucket:
    return UsageBucket.objects.create(rule_slug=rule, tier_slug=tier, start=moment(ago), **fields)
