"""Rules written in code, shown below those of the database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from django_ratelimiter.models import Rule
from django_ratelimiter.rules import code

from .pages import RULES, shown

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_registered", {})


def test_are_listed_in_words(admin_client: Client, rule: Rule) -> None:
    code.register(code.rule_of("code:shop.order", 100, 60, "user or ip"))
    code.register(code.rule_of("code:shop.closed", 0, 60, "<key>", mode="shadow"))
    response = admin_client.get(RULES)
    assert response.context["rules_in_code"] == [
        ("code:shop.closed", "shadow", "<key>", "refuses every request"),
        ("code:shop.order", "enforce", "user or ip", "every tier: 100 per minute, sliding window, exact"),
    ]
    page = shown(response)
    assert "Rules written in code" in page
    assert "code:shop.order" in page
    assert "&lt;key&gt;" in response.content.decode()
    assert [found.slug for found in response.context["cl"].result_list] == ["export"]


def test_none_is_no_heading(operator: Callable[..., Client], rule: Rule) -> None:
    assert "written in code" not in shown(operator("view_rule").get(RULES))
