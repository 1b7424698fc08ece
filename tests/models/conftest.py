"""A rule and a tier."""

from __future__ import annotations

import pytest

from django_ratelimiter.models import Rule, Tier


@pytest.fixture
def tier() -> Tier:
    return Tier.objects.create(slug="free", name="Free", rank=1)


@pytest.fixture
def rule() -> Rule:
    return Rule.objects.create(slug="api", name="API", mode="enforce")
