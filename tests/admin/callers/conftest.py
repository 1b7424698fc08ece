"""A user who is blocked, and the page of this caller."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from django_ratelimiter.models import Tier

from .page import CALLER, add_rule, ask


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
    add_rule("export", 3, partition_by=["user"])
    add_rule("search", 100, partition_by=["user"])
    ask(ann, 3)
    return f"{CALLER}?kind=user&value=id%3A{ann.pk}"
