"""A caller's page in a browser: with a pasted response, with a plan of the project, and on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ObjectDoesNotExist
from django.test import Client, RequestFactory, override_settings
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.headers import rejection_response
from django_ratelimiter.inspection.references import everybody
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules import cache, tiers
from tests.browser import ENTER, TAB, Browser
from tests.strict_csp import STRICT

from ..pages import IN_BROWSER, open_as
from .page import CALLER

pytestmark = IN_BROWSER


@pytest.fixture
def ann(monkeypatch: pytest.MonkeyPatch) -> User:
    """A user who has used up one of her limits."""
    monkeypatch.setattr("django_ratelimiter.rules.inline.registered", tuple)
    User.objects.create_superuser("admin", password="secret")
    for rank, (slug, default) in enumerate((("free", "authenticated"), ("pro", "none"))):
        Tier.objects.create(slug=slug, name=slug.title(), rank=rank, default_for=default)
    for slug, quota, split, mode in (
        ("Exports", 20, ["user"], "enforce"),
        ("Search", 300, ["user"], "enforce"),
        ("Reports by address", 40, ["user", "ip"], "enforce"),
        ("Uploads", 15, ["user"], "shadow"),
    ):
        rule = Rule.objects.create(slug=slug.replace(" ", "-").lower(), name=slug, mode=mode, partition_by=split)
        RuleLimit.objects.create(rule=rule, quota=quota, window_seconds=Decimal(86_400))
    user = User.objects.create_user("ann")
    request = RequestFactory().get("/")
    request.user = user
    assert all(limiter.check(_again(request)).allowed for _ in range(20))
    assert not limiter.check(_again(request)).allowed
    return user


def _again(request: Any) -> Any:
    request.__dict__.pop("ratelimit", None)
    return request


@pytest.fixture
def page(window: Browser, live_server: Any, ann: User) -> Iterator[Browser]:
    """The search form, reached by an operator who has just logged in."""
    with override_settings(MIDDLEWARE=[STRICT, *settings.MIDDLEWARE]):
        window.resize(1280, 900)
        open_as(window, "admin", f"{live_server.url}{CALLER}")
        window.wait_for("#ratelimiter-find")
        window.complaints()
        yield window


def test_is_as_wide_as_the_screen_and_can_be_used_by_keyboard(page: Browser, ann: User) -> None:
    page.type("#ratelimiter-value", "ann" + ENTER)
    page.wait_for("#ratelimiter-state")
    page.resize(360, 800)
    assert page.script("return document.documentElement.scrollWidth") <= 360
    page.script("document.querySelector('#ratelimiter-reason').focus()")
    page.press(TAB)
    assert page.script("return document.activeElement.id") == "ratelimiter-reset"


@pytest.fixture
def site() -> Rule:
    """A rule whose counter all callers share, used up."""
    rule = Rule.objects.create(slug="whole-site", name="Whole site", mode="enforce")
    RuleLimit.objects.create(rule=rule, quota=1, window_seconds=Decimal(3_600), algorithm="fixed_window")
    return rule


def test_from_a_pasted_response_to_the_reason(page: Browser, ann: User, live_server: Any, site: Rule) -> None:
    """The operator has what the customer has sent, as a program got it, and nothing else."""
    request = RequestFactory().get("/", headers={"Accept": "text/plain"})
    request.user = ann
    limiter.check(_again(request))
    decision = limiter.check(_again(request))
    assert decision.binding is not None
    body = rejection_response(request, decision).content.decode()
    assert f"Reference: {decision.binding.reference}" in body
    for text, title, told in (
        (body, f"User {ann.pk}, ann", "One rule rejects requests of this caller now: Exports."),
        (
            f"WHOLE-SITE#{everybody()[:8]}",
            "All callers together",
            "All callers share one counter of this rule: Whole site.",
        ),
    ):
        page.open(f"{live_server.url}{reverse('admin:app_list', args=['django_ratelimiter'])}")
        one_line = text.replace("\n", "")  # as a browser pastes it
        page.script("document.querySelector('#ratelimiter-search').value = arguments[0]", one_line)
        page.type("#ratelimiter-search", ENTER)
        page.wait_for("#ratelimiter-state")
        assert page.texts("h1") == [title]
        assert told in page.texts("#ratelimiter-state")[0]


def test_a_customer_with_a_plan_of_the_project_is_doubled_until_friday(
    page: Browser, ann: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profile(user: User) -> Any:
        if user.pk != ann.pk:
            raise ObjectDoesNotExist
        return SimpleNamespace(plan="pro")

    def policy() -> str:
        client = Client()
        client.force_login(ann)
        return str(client.get("/hello/")["RateLimit-Policy"])

    monkeypatch.setattr(User, "profile", property(profile), raising=False)
    with cache.editing():
        exports, pro = Rule.objects.get(slug="exports"), Tier.objects.get(slug="pro")
        RuleLimit.objects.create(rule=exports, tier=pro, quota=50, window_seconds=Decimal(86_400))
    entries = {**settings.RATELIMITER, "TIER_RESOLVER": "user.profile.plan"}
    with override_settings(RATELIMITER=entries):
        page.type("#ratelimiter-value", "ann" + ENTER)
        page.wait_for("#ratelimiter-state")
        text = " ".join(page.texts("#content"))
        assert "Pro, by RATELIMITER['TIER_RESOLVER']" in text
        assert "20 of 50, 30 left" in text
        assert page.texts("#ratelimiter-state")[0].startswith("not blocked")
        assert '"exports";q=50;' in policy()
        page.click("#ratelimiter-more")
        page.wait_for("#id_reason")
        page.type("#id_reason", "Called: a busy week" + ENTER)
        page.wait_for("#ratelimiter-why + ul")
        tiers.forget()
        text = " ".join(page.texts("#content"))
        assert "Pro, by RATELIMITER['TIER_RESOLVER'], limits times 2, until" in text
        assert "21 of 100, 79 left" in text
        assert '"exports";q=100;' in policy()
