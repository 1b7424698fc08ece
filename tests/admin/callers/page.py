"""A caller's page, as a test opens it and presses its buttons."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.admin.callers.act_forms import days

from ..pages import shown

CALLER = reverse("admin:django_ratelimiter_caller")


def ask(user: User, times: int = 1, **meta: str) -> bool:
    for _ in range(times):
        request = RequestFactory().get("/", **meta)
        request.user = user
        allowed = limiter.check(request).allowed
    return allowed


def press(client: Client, page: str, act: str, **fields: str) -> str:
    """Press a button of the page, as a browser would, and return the page that comes next."""
    context = client.get(page).context
    sent = {"token": context["token"], "reason": "he called", "until": days()[-1].value, **fields}
    response = client.post(page, {**sent, "act": act}, follow=True)
    assert response.redirect_chain == [(page, 302)]
    return shown(response)
