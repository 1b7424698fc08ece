"""Fixtures of the tests of the admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.models import Rule, RuleLimit, Tier


@pytest.fixture
def free() -> Tier:
    return Tier.objects.create(slug="free", name="Free", rank=1)


@pytest.fixture
def rule(free: Tier) -> Rule:
    """A rule with a limit for free callers and one for the others."""
    rule = Rule.objects.create(slug="export", name="Export", path="/api/export/", path_kind="prefix")
    RuleLimit.objects.create(rule=rule, tier=free, quota=100, window_seconds=Decimal(60))
    RuleLimit.objects.create(rule=rule, quota=5, window_seconds=Decimal(1))
    return rule


@pytest.fixture
def operator(client: Client) -> Iterator[Callable[..., Client]]:
    """A client logged in as a member of staff with these permissions only: `operator("view_rule")`."""

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user("operator", password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def engine_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing fails."""

    def get_engine() -> Any:
        raise EngineUnavailable("refused")

    monkeypatch.setattr("django_ratelimiter.rules.versions.get_engine", get_engine)
