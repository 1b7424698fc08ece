"""Fixtures of the tests of the admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter import backend
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.limiter import io
from django_ratelimiter.models import Rule, RuleLimit, Tier
from tests.browser import Browser, browser

from ..making import failing
from .pages import ADD_RULE, permit, rule_form
from .rules.visitor import PATH, TimedEngine, Visitor


@pytest.fixture
def free() -> Tier:
    return Tier.objects.create(slug="free", name="Free", rank=1)


@pytest.fixture
def rule(free: Tier) -> Rule:
    """A rule with a limit for free callers and one for the others."""
    rule = Rule.objects.create(slug="export", name="Export", path="/api/export/", path_kind="prefix", mode="enforce")
    RuleLimit.objects.create(rule=rule, tier=free, quota=100, window_seconds=Decimal(60))
    RuleLimit.objects.create(rule=rule, quota=5, window_seconds=Decimal(1))
    return rule


@pytest.fixture
def operator(client: Client) -> Iterator[Callable[..., Client]]:
    """A client logged in as a member of staff with these permissions only: `operator("view_rule")`."""

    def log_in(*codenames: str) -> Client:
        client.force_login(User.objects.create_user("operator", password="x", is_staff=True))
        permit(*codenames)
        return client

    return log_in


@pytest.fixture(scope="session")
def _running_browser() -> Iterator[Browser]:
    with browser() as window:
        yield window


@pytest.fixture
def window(_running_browser: Browser) -> Iterator[Browser]:
    """The browser that all tests share, for each like new: to start one takes longer than most of them do."""
    yield _running_browser
    _running_browser.forget()


@pytest.fixture
def engine_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing fails."""
    down = failing(EngineUnavailable("rejected"))
    monkeypatch.setattr("django_ratelimiter.rules.stored.versions.get_engine", down)


@pytest.fixture
def visitor(
    transactional_db: None, client: Client, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Visitor]:
    engine = TimedEngine(redis_client)
    monkeypatch.setattr(backend, "_engine", engine)
    visitor = Visitor(client, engine)
    monkeypatch.setattr(io, "sleep", lambda _seconds: None)
    yield visitor
    visitor.close()


@pytest.fixture
def save(transactional_db: None, admin_client: Client) -> Callable[..., RuleLimit]:
    """Save a rule with one limit by the admin's form: `save({"quota": …}, **fields of the rule)`."""

    def post(columns: dict[str, Any], **fields: Any) -> RuleLimit:
        rule = {"path_kind": "exact", "path": PATH, "methods": ["GET"], "partition_by": ["ip"]}
        response = admin_client.post(ADD_RULE, rule_form(columns, **rule | fields))
        assert response.status_code == 302, response.context["errors"]
        return RuleLimit.objects.get()

    return post
