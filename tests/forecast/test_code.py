"""What code asks the limiter for, as far as it can be read: scopes and costs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from django.urls import path

from django_ratelimiter.forecast.code import asked_by, asking_in_code, costs_of_scope

from . import test_guard, views
from .test_guard import LINE, Plan, rule

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]
plan = test_guard.plan


@pytest.mark.parametrize("way", views.SEEN)
def test_scope_that_a_decorator_or_class_names_is_read(way: str) -> None:
    assert [(each.scope, each.cost, each.is_computed) for each in asked_by(views.SEEN[way], "GET")] == [
        ("search", None, False)
    ]


@pytest.mark.parametrize("way", [*views.SEEN, *views.UNSEEN])
def test_code_that_may_ask_for_a_scope_makes_its_rules_not_known(
    plan: Plan, settings: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls: Any = ModuleType("tests.forecast.ways")
    urls.urlpatterns = [path("way/", (views.SEEN | views.UNSEEN)[way]), *views.urlpatterns]
    monkeypatch.setitem(__import__("sys").modules, "tests.forecast.ways", urls)
    settings.ROOT_URLCONF = "tests.forecast.ways"
    lines = [LINE.replace("/plain/", "/search/" if second % 2 else "/way/") % second for second in range(4)]
    code, text = plan(lines, rules=rule(scope="search"), bound="1%")
    said = "a log does not show which scopes code asks for: tests.forecast.views."
    assert (code, said in text) == ((2, False) if way in views.SEEN else (1, True))
    assert ("4 requests" in text) is (way in views.SEEN)
    assert plan(lines, "--accept", "pages", rules=rule(scope="search"), bound="1%")[0] == 2


def test_middleware_that_asks_in_code_is_named(settings: Any) -> None:
    assert asking_in_code() == []
    settings.MIDDLEWARE = ["tests.forecast.views.in_body"]
    assert asking_in_code() == ["tests.forecast.views.in_body"]


def test_cost_of_a_decorator_is_charged(plan: Plan) -> None:
    lines = [LINE.replace("/plain/", "/costly/") % second for second in range(3)]
    assert "Newly rejected: 2 requests (66.7 %), 1 caller (100 %)." in plan(lines, rules=rule(scope="costly"))[1]
    assert costs_of_scope("costly") == ({3}, [])


@pytest.mark.parametrize("scope", ["computed", "after"])
def test_cost_that_code_computes_makes_a_rule_not_known(plan: Plan, scope: str) -> None:
    lines = [LINE.replace("/plain/", f"/{scope}/") % second for second in range(3)]
    code, text = plan(lines, rules=rule(scope=scope), bound="100%")
    assert (code, "code computes the cost of its requests" in text) == (1, True)
