"""A caller's page, as a test opens it, presses its buttons and follows its links."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.test import Client
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.models import Rule
from django_ratelimiter.rules import tiers
from django_ratelimiter.rules.stored import storage

from ...making import make_rule, request_of
from ..pages import BrowserForm, shown

CALLER = reverse("admin:django_ratelimiter_caller")


def add_rule(slug: str, quota: int, limit: dict[str, Any] | None = None, **fields: Any) -> Rule:
    """Make a rule with one limit, by the hour unless `limit` says otherwise."""
    limit = {"window_seconds": 3_600} if not limit else {"window_seconds": None, **limit}
    about = {"name": slug.title(), "path_kind": "exact", "path": "/", **fields}
    return make_rule(slug, quota, None, "fixed_window", limit, **about)


def ask(user: User | AnonymousUser, times: int = 1, **meta: str) -> bool:
    for _ in range(times):
        allowed = limiter.check(request_of(user, **meta)).allowed
    return allowed


def press(client: Client, page: str, counter: str = "", **fields: str) -> str:
    """Reset a counter, or all, as a browser would, and return the page that comes next."""
    response = client.post(page, {"reset": counter, "reason": "he called", **fields}, follow=True)
    assert response.redirect_chain == [(page, 302)]
    return shown(response)


def links(client: Client, page: str) -> dict[str, str]:
    """The addresses of the forms to which the page leads."""
    return {name: url for name, url, _text in client.get(page).context["links"]}


def save(client: Client, page: str, link: str, **fields: Any) -> str:
    """Follow a link of the page, save the form as it is filled in, and return the caller's page that comes next.

    Afterwards this process knows the row, as every one does a few seconds later.
    """
    url = links(client, page)[link]
    response = client.post(url, {**BrowserForm(shown(client.get(url))).sent, **fields}, follow=True)
    tiers.forget()
    storage.forget_entries()
    assert response.redirect_chain == [(page, 302)]
    return shown(response)
