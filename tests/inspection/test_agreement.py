"""An explanation names what the next request gets: at each entry point, with each status, also beyond a limit."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_ratelimiter import backend
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.explain import Question, explain
from django_ratelimiter.models import Tier, TierAssignment
from django_ratelimiter.testing import FrozenClock
from tests.making import MakeRule

from . import code_views

pytestmark = [pytest.mark.urls(__name__), pytest.mark.django_db(transaction=True)]

FORM = "application/x-www-form-urlencoded"


def answer(request: HttpRequest, **captured: object) -> HttpResponse:
    """Answer with the status that the request asks for."""
    return HttpResponse(status=int(request.GET.get("status", 200)))


urlpatterns = [
    path("hello/", answer, name="hello"),
    path("items/<int:item>/", answer, name="item"),
    *(each for each in code_views.urlpatterns if str(each.pattern) != "foreign/"),
]
CODE = [f"/{each.pattern}" for each in urlpatterns[2:]]
PLACES = ("/hello/", "/items/7/", "/nowhere/", *CODE)


@pytest.fixture(autouse=True)
def _rules(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(backend, "_engine", MemoryEngine(FrozenClock()))
    pro = Tier.objects.create(slug="pro", name="Pro", rank=1)
    TierAssignment.objects.create(tier=pro, user=User.objects.create(username="ann"))
    make_rule("site", quota=9, priority=1)
    make_rule("ip", quota=5, partition_by=["ip"], charge_when="failure")
    make_rule("user", quota=4, partition_by=["user"], missing_partition="ip", message="Slow down.")
    make_rule("pro", quota=1, tier=pro, methods=["POST"])
    make_rule("field", quota=2, partition_by=["field:name"], charge_when="success")
    make_rule("item", quota=2, path_kind="route", path="items/<int:item>/", partition_by=["path:item"], cost=2)
    make_rule("scoped", quota=3, scope="export")
    make_rule("shadow", quota=1, mode="shadow")
    with override_settings(REST_FRAMEWORK={"DEFAULT_THROTTLE_RATES": code_views.RATES}):
        yield


@pytest.mark.parametrize("name", ["", "ann"])
@pytest.mark.parametrize("place", PLACES)
def test_explanation_agrees_with_the_request(place: str, name: str) -> None:
    client, headers = Client(), {"X-Org": "acme", "Accept": "application/json"}
    if name:
        client.force_login(User.objects.get(username=name))
        headers |= {"Authorization": f"Name {name}", "X-Name": name} if place in CODE else {}
    for method, status in (("POST", 200), ("GET", 400), ("POST", 400), ("GET", 200), ("HEAD", 200), ("POST", 200)):
        body = "name=ann" if method == "POST" else ""
        question = Question(
            method=method,
            path=f"{place}?status={status}",
            user=name,
            ip="203.0.113.1",
            headers=tuple(headers.items()),
            identities={"field:name": "ann"} if body else {},
        )
        explained = explain(question)
        assert explain(question) == explained, "nothing was charged"
        response: Any = client.generic(method, question.path, body, FORM, headers=headers, REMOTE_ADDR="203.0.113.1")
        told, decision = explained.response, getattr(response.wsgi_request, "ratelimit", None)
        by = decision.binding.rule.slug if decision and not decision.allowed else ""
        if by.startswith("code:"):  # limits in code are named, and not decided
            assert explained.in_code
            continue
        assert (told.allowed, told.binding) == (not by, by)
        assert told.status in (response.status_code, None)
        slugs = {each.rule.slug for each in (decision.results if decision else ())}
        unread = {"field"} if by else set()  # the body of a request that other rules reject is not read
        applying = {each.rule.slug for each in explained.matched} - unread
        assert applying == {slug for slug in slugs - unread if not slug.startswith("code:")}
