"""Rules for the doors' tests, made in the database as an operator would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_ratelimiter.models import Rule, RuleLimit, Tier

MakeRule = Callable[..., Rule]


@pytest.fixture
def make_rule(db: None) -> MakeRule:
    """Make a rule of one limit: `make_rule("slug", quota=2, tier=None, algorithm=…, **fields of the rule)`.

    The window is a day, so that no edge of it falls into a test.
    """

    def make(
        slug: str, quota: int = 2, tier: Tier | None = None, algorithm: str = "token_bucket", **fields: Any
    ) -> Rule:
        rule = Rule.objects.create(slug=slug, name=slug, **fields)
        RuleLimit.objects.create(rule=rule, tier=tier, algorithm=algorithm, quota=quota, window_seconds=86_400)
        return rule

    return make
