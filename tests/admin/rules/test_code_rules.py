"""Rules written in code, shown below those of the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client, RequestFactory
from rest_framework.request import Request
from rest_framework.views import APIView

from django_ratelimiter.models import Rule
from django_ratelimiter.rules import inline
from django_ratelimiter.throttling import AnonRateThrottle

from ..pages import RULES, shown

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})


def test_are_listed_in_words(admin_client: Client, rule: Rule) -> None:
    inline.register(inline.rule_of("code:shop.order", 100, 60, "user or ip"))
    inline.register(inline.rule_of("code:shop.closed", 0, 60, "<key>", mode="shadow"))
    response = admin_client.get(RULES)
    assert response.context["rules_in_code"] == [
        ("code:shop.closed", "shadow", "shadow", "<key>", "rejects every request"),
        ("code:shop.order", "enforce", "enforce", "user or ip", "everyone: 100 per minute, sliding window, exact"),
    ]
    page = shown(response)
    assert "Rules written in code" in page
    assert "code:shop.order" in page
    assert "&lt;key&gt;" in response.content.decode()
    assert [found.slug for found in response.context["cl"].result_list] == ["export"]


def test_are_listed_in_the_language_of_the_page(admin_client: Client, rule: Rule, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    inline.register(inline.rule_of("code:shop.order", 100, 60, "ip"))
    page = shown(admin_client.get(RULES))
    assert "IP-Adresse" in page.partition("code:shop.order")[2]
    assert ">durchsetzen<" in page.partition("code:shop.order")[2]


def test_a_throttle_counts_by_its_caller_and_not_by_its_scope(admin_client: Client, rule: Rule) -> None:
    class Throttle(AnonRateThrottle):
        rate = "3/minute"

    Throttle().allow_request(Request(RequestFactory().get("/")), APIView())
    [[slug, _mode, _word, counted_by, _limits]] = admin_client.get(RULES).context["rules_in_code"]
    assert (slug, counted_by) == ("code:anon", "caller")


def test_none_is_no_heading(operator: Callable[..., Client], rule: Rule) -> None:
    assert "written in code" not in shown(operator("view_rule").get(RULES))
