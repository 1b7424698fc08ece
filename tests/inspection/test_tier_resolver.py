"""The tier of a caller where RATELIMITER['TIER_RESOLVER'] finds it, as the caller's page and a request have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, override_settings

from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.grounds import grounds_of
from django_ratelimiter.models import Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.cache import latest_rules

from .test_counters import ask, counter

pytestmark = pytest.mark.django_db
RESOLVED = override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TIER_RESOLVER": f"{__name__}.tier_of"})


def tier_of(request: Any) -> str | None:
    """The tier that the user's e-mail names."""
    return request.user.email or None


@pytest.fixture
def rule(add_rule: Callable[..., Rule], pro: Tier) -> Rule:
    """5 for each tier, 50 for pro; the user is assigned to pro, which does not count."""
    rule = add_rule("export", ["user"], quota=5)
    with cache.editing():
        RuleLimit.objects.create(rule=rule, tier=pro, quota=50, window_seconds=60)
    return rule


@RESOLVED
@pytest.mark.parametrize(
    ("email", "has_default", "tier", "source", "capacity"),
    [
        ("pro", True, "pro", "resolver", 50),
        ("", True, "free", "default", 5),
        ("gone", True, "free", "default", 5),
        ("", False, None, "nothing", 5),
    ],
)
def test_the_page_shows_the_tier_that_a_request_gets(
    rule: Rule,
    user: User,
    request: pytest.FixtureRequest,
    admin_client: Client,
    email: str,
    has_default: bool,
    tier: str | None,
    source: str,
    capacity: int,
) -> None:
    User.objects.filter(pk=user.pk).update(email=email)
    user.refresh_from_db()
    with cache.editing():
        if has_default:
            request.getfixturevalue("free")
        TierAssignment.objects.create(user=user, tier=Tier.objects.get(slug="pro"))
    caller = caller_of("user", str(user.pk))
    found = grounds_of(caller, latest_rules())
    assert (found.entitlement.tier and found.entitlement.tier.slug, found.source) == (tier, source)
    decided = ask(user)
    assert decided.results[0].verdict.remaining == capacity - 1
    assert (counter(caller, "export").used, counter(caller, "export").capacity) == (1, capacity)
    page = admin_client.get("/admin/django_ratelimiter/rule/caller/", {"kind": "user", "value": user.pk}, follow=True)
    assert page.status_code == 200
    call_command("ratelimit", "caller", "--user", str(user.pk))
