"""Rules in the database, and the version that the engine holds."""

from __future__ import annotations

from typing import Any

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Version
from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.rules.stored.published import version_in_force


def make_rule(slug: str = "rule", quota: int = 5, limit: dict[str, Any] | None = None, **fields: Any) -> Rule:
    """A rule in force with one limit, per day. Unlike those of `tests.making`, each row is a version of its own."""
    rule = Rule.objects.create(slug=slug, **{"name": slug, "mode": "enforce", **fields})
    usual = {"algorithm": "fixed_window", "quota": quota, "window_seconds": 86_400}
    RuleLimit.objects.create(rule=rule, **usual | (limit or {}))
    return rule


def held() -> Version | None:
    """The version that the engine holds; `None` = none."""
    return version_in_force(get_engine())
