"""A user who is blocked, and the page of this caller."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.models import Rule, RuleLimit, Tier

from .page import CALLER, ask


@pytest.fixture(autouse=True)
def _no_rules_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.rules.inline.registered", tuple)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def page(ann: User, free: Tier) -> str:
    """The page of a user who is blocked by one of two rules."""
    Tier.objects.update(default_for="authenticated")
    for slug, quota in (("export", 3), ("search", 100)):
        rule = Rule(slug=slug, name=slug.title(), mode="enforce", partition_by=["user"], path_kind="exact", path="/")
        rule.save()
        RuleLimit.objects.create(rule=rule, quota=quota, window_seconds=Decimal(3600), algorithm="fixed_window")
    ask(ann, 3)
    return f"{CALLER}?kind=user&value=id%3A{ann.pk}"
