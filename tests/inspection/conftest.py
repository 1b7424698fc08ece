"""Fixtures of the tests of callers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.models import Rule, RuleLimit, Tier


@pytest.fixture(autouse=True)
def _no_rules_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out those that other tests have written."""
    monkeypatch.setattr("django_ratelimiter.rules.inline.registered", tuple)


@pytest.fixture
def free() -> Tier:
    return Tier.objects.create(slug="free", name="Free", rank=1, default_for="authenticated")


@pytest.fixture
def pro() -> Tier:
    return Tier.objects.create(slug="pro", name="Pro", rank=2)


@pytest.fixture
def user() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def add_rule() -> Callable[..., Rule]:
    """Save an enforced rule with one limit: `add_rule("export", ["user"], quota=5)`."""

    def add(slug: str, partition_by: list[str], *, mode: str = "enforce", cost: int = 1, **limit: Any) -> Rule:
        missing = limit.pop("missing_partition", "skip")
        rule = Rule.objects.create(
            slug=slug, name=slug.title(), mode=mode, partition_by=partition_by, cost=cost, missing_partition=missing
        )
        if not limit.get("calendar"):
            limit = {"window_seconds": Decimal(3600), **limit}
        RuleLimit.objects.create(rule=rule, **{"quota": 5, **limit})
        return rule

    return add
