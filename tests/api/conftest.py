"""Rules for the API to tell of, and people who ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache

from ..making import client_of

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
    return client_of(ann)
