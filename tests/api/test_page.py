"""The page of a caller's limits, and the tag for pages of the project. Looking uses no quota."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from django.shortcuts import render
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import timezone
from django.utils.functional import SimpleLazyObject

from django_ratelimiter import limiter, me
from django_ratelimiter.models import AccessEntry, Tier, UsageBucket
from django_ratelimiter.rules.records import RuleRecord
from django_ratelimiter.rules.routes import matched_with

from ..headers.test_responses import with_pages
from ..limiter.test_limiter import Broken
from ..making import request_of
from ..urls import urlpatterns as named
from .conftest import MakeRule
from .test_me import me as json_of
from .urls import urlpatterns as of_api

urlpatterns = [*of_api[:1], *named, path("page/", me.page), path("own/", partial(render, template_name="own.html"))]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.api.test_page")]

NOT_KNOWN = "What is left is not known now."
MONTH = {"algorithm": "fixed_window", "window_seconds": None, "calendar": "month", "timezone": "America/Chicago"}


@pytest.fixture
def add(make_rule: MakeRule) -> MakeRule:
    """Make a rule by address for the view `hello`."""
    return partial(make_rule, partition_by=["ip"], path_kind="prefix", path="/hello/")


def shown(client: Client) -> str:
    """Return the text of the page, with the values of its bars."""
    response = client.get("/page/")
    assert response.status_code == 200
    text = re.sub(r'<meter[^>]*value="([\d.]+)"></meter>', r" [\1] ", response.content.decode().partition("<h1>")[2])
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_shows_an_anonymous_caller_bars_and_dates(add: MakeRule, client: Client) -> None:
    add("hello", {None: [{"quota": 4, **MONTH}]}, methods=["GET"])
    start = "Your limits Rule hello GET /hello/…"
    assert shown(client) == f"{start} 4 per calendar month [0.00] 0 of 4 used, 4 left"
    client.get("/hello/")
    text = [shown(client) for _ in range(3)][-1]  # looking uses nothing
    assert re.search(r"\[25.00\] 1 of 4 used, 3 left; full again at \w+\.? 1, \d{4}, midnight", text)
    for _ in range(3):
        client.get("/hello/")
    text = shown(client)
    assert re.search(rf"{start} Rejected until \w+\.? 1, \d{{4}}, midnight C[SD]T\. 4 per .* \[100.00\]", text)
    assert text.endswith("4 of 4 used, 0 left")  # the date is said once
    response = client.get("/page/")
    assert not re.findall(r"<script|<style|style=|javascript:|\son\w+=", response.content.decode())
    assert response["Cache-Control"] == "private, no-store"


def test_the_tag_shows_the_same_and_both_templates_can_be_replaced(add: MakeRule, client: Client) -> None:
    add("hello")
    ours, tag = "django.template.loaders.app_directories.Loader", {"own.html": "{% load ratelimiter %}{% my_limits %}"}
    with with_pages(tag, ours):
        page, part = (client.get(url).content.decode() for url in ("/page/", "/own/"))
    assert "5 per day" in part
    assert part.strip() in page
    with with_pages({**tag, "django_ratelimiter/my_limits.html": "{{ own.rules.0.remaining }} left"}, ours):
        assert client.get("/own/").content == b"5 left"
    with with_pages({"django_ratelimiter/me.html": "mine"}, ours):
        assert client.get("/page/").content == b"mine"


def test_the_next_request_can_cost_the_least_of_all_limits(add: MakeRule, as_ann: Client) -> None:
    add("hello", {None: [{"quota": 9}, {"quota": 2, "window_seconds": 60}]})
    found = []
    for _ in range(2):
        as_ann.get("/hello/")
        found.append([(row["left"], row["remaining"], row["retry_in"]) for row in json_of(as_ann)["limits"]])
    wait = found[1][0][2]
    assert found == [[(8, 1, 0), (1, 1, 0)], [(7, 0, wait), (0, 0, wait)]]
    assert 0 < wait <= 30


def test_a_rule_that_matches_all_requests_of_another_rejects_them_too(add: MakeRule, as_ann: Client) -> None:
    add("all", {None: [{"quota": 1}]})
    add("hello", path_kind="any", path="", view_name="hello")
    add("an-item", path="/items/")
    as_ann.get("/hello/")
    rows = [(row["rule"], row["left"], row["remaining"], row["retry_in"] > 0) for row in json_of(as_ann)["limits"]]
    assert rows == [("all", 0, 0, True), ("hello", 4, 0, True), ("an-item", 5, 5, False)]
    assert re.search(r"Rule hello Rejected until [^“]*, by “Rule all”\. 5 per day \[20.00\] 1 of 5 used", shown(as_ann))


HELLO, ITEM = {"path_kind": "exact", "path": "/hello/"}, {"path_kind": "route", "path": "items/<int:item>/"}
POST = frozenset({"POST"})


@pytest.mark.parametrize(
    ("rule", "other", "always"),
    [
        ({}, HELLO, False),
        (HELLO, {"view_name": "hello"}, True),
        ({**HELLO, "methods": POST}, {"methods": POST | {"PUT"}}, True),
        (HELLO, {"methods": POST}, False),
        (ITEM, {"path_kind": "prefix", "path": "/items/"}, True),
        (ITEM, {"path_kind": "exact", "path": "/items/"}, False),
        ({"path_kind": "exact", "path": "/nowhere/"}, {}, False),
    ],
)
def test_which_rules_match_each_request_of_another(rule: Any, other: Any, always: bool) -> None:
    first, second = (RuleRecord(name, name, "enforce", {}, **fields) for name, fields in (("a", rule), ("b", other)))
    assert matched_with(first, [second]) == ({"b"} if always else set())


def test_what_the_asking_request_gives_back_is_left(make_rule: MakeRule, client: Client) -> None:
    make_rule("busy", {None: [{"quota": 1, "algorithm": "concurrency"}]}, partition_by=["ip"])
    for when in ("failure", "success"):
        make_rule(when, {None: [{"quota": 3}]}, partition_by=["ip"], charge_when=when)
    texts = re.findall(r"\d of \d used, \d left|Rejected", shown(client))
    assert texts == ["0 of 1 used, 1 left", "0 of 3 used, 3 left", "1 of 3 used, 2 left"]
    limiter.check(RequestFactory().get("/"))
    assert [each.counters[0].left for each in me.own_limits(RequestFactory().get("/")).rules] == [0, 2, 1]


def test_nothing_is_known_while_redis_is_away(add: MakeRule, as_ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    add("hello")
    as_ann.get("/hello/")
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    assert shown(as_ann) == f"Your limits {NOT_KNOWN}"
    [row] = json_of(as_ann)["limits"]
    assert {row[name] for name in ("left", "remaining", "resets_in", "resets_at", "retry_in")} == {None}


def test_nothing_is_known_if_the_user_cannot_be_read(make_rule: MakeRule, free: Tier) -> None:
    make_rule("site", {None: [{"quota": 9}], free: [{"quota": 5}]}, partition_by=["ip"])
    found = me.own_limits(request_of(SimpleLazyObject(lambda: 1 / 0)))
    assert (found.is_known, found.rules[0].remaining) == (False, None)


def test_what_is_left_may_be_an_estimate_not_known_or_depend_on_the_request(add: MakeRule, client: Client) -> None:
    limits = {None: [{"quota": 50, "algorithm": "sliding_window_counter"}]}
    add("alone", limits, sync_interval_ms=-1)
    add("fetched", limits, sync_interval_ms=500)
    add("login", partition_by=["field:username"])
    text = shown(client)
    assert f"/hello/… 50 per day: {NOT_KNOWN} Rule fetched /hello/… 50 per day [0.00] ≈ 0 of 50 used" in text
    assert text.endswith("50 left Limits that depend on what a request contains Rule login: 5 per day, token bucket")


def test_units_are_named_where_a_request_has_cost_more_than_one(
    add: MakeRule, client: Client, django_assert_num_queries: Any
) -> None:
    for slug, cost, units in (("export", 2, 7), ("code", 1, 700), ("usual", 1, 7)):
        add(slug, cost=cost, path=f"/{slug}/")
        UsageBucket.objects.create(rule_slug=slug, granularity="day", start=timezone.now(), allowed=7, units=units)
    shown(client)
    with django_assert_num_queries(1):
        text = shown(client)
    assert "/export/… 5 units per day [0.00] 0 of 5 used, 5 left One request uses 2." in text
    assert "/code/… 5 units per day [0.00]" in text
    assert "/usual/… 5 per day [0.00]" in text


def test_says_so_if_nothing_limits_the_caller_or_it_is_denied(add: MakeRule, client: Client, settings: Any) -> None:
    settings.MIDDLEWARE, settings.RATELIMITER = [], {**settings.RATELIMITER, "TIER_CACHE_SECONDS": 0}
    assert shown(client) == "Your limits No limits apply to you."
    add("users", partition_by=["user"], missing_partition="deny")
    assert shown(client) == "Your limits Rule users /hello/… Trying again will not help. 5 per day"
    AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.1")
    assert shown(client) == "Your limits You do not have access to this service."
