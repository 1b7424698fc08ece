"""What a caller is told in the corners: calendars, missing partitions, exemptions, and event loops."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from django.utils import timezone, translation

from django_ratelimiter import backend
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.models import Tier, TierAssignment
from django_ratelimiter.rules import tiers

from .conftest import KEY, MakeRule
from .test_me import me, told

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.api.urls")]


def test_nothing_is_said_of_shadow(make_rule: MakeRule, as_ann: Client) -> None:
    make_rule("on-trial", mode="shadow", partition_by=["user"])
    make_rule("is-off", mode="off", partition_by=["user"])
    for _ in range(9):
        as_ann.get("/hello/")
    response = as_ann.get("/limits/me/")
    assert response.json()["limits"] == []
    for slug in ("on-trial", "is-off"):
        assert slug not in str(response.headers) + response.content.decode()


def test_the_unlimited_have_no_limit(make_rule: MakeRule, client: Client, pro: Tier) -> None:
    unlimited = {"unlimited": True, "quota": None, "window_seconds": None}
    make_rule("api", {None: [{"quota": 5}], pro: [unlimited]}, partition_by=["api_key"])
    assert told(client, **{"X-API-Key": KEY}) == []


def test_a_calendar_ends_with_its_month(make_rule: MakeRule, as_ann: Client) -> None:
    month = {"quota": 5, "algorithm": "fixed_window", "window_seconds": None, "calendar": "month", "timezone": "UTC"}
    make_rule("monthly", {None: [month]}, partition_by=["user"])
    as_ann.get("/hello/")
    [limit] = me(as_ann)["limits"]
    assert (limit["remaining"], limit["window_seconds"]) == (4, None)
    back = datetime.fromisoformat(limit["resets_at"]).astimezone(timezone.get_fixed_timezone(0))
    assert abs(back - back.replace(day=1, hour=0, minute=0, second=0, microsecond=0)) < timedelta(seconds=2)
    assert "5 per calendar month in UTC" in limit["in_words"]


def test_a_rule_that_rejects_whoever_lacks_something(make_rule: MakeRule, client: Client, pro: Tier) -> None:
    make_rule("users-only", partition_by=["user"], missing_partition="deny", path_kind="prefix", path="/hello/")
    headers = {"X-API-Key": KEY}
    assert client.get("/hello/", headers=headers).status_code == 429
    [limit] = me(client, **headers)["limits"]
    assert (limit["rule"], limit["remaining"], limit["retry_in"]) == ("users-only", 0, None)


def test_a_user_with_an_api_key_is_one_caller(make_rule: MakeRule, as_ann: Client, ann: User, pro: Tier) -> None:
    make_rule("per-key", partition_by=["api_key"])
    make_rule("per-user", partition_by=["user"])
    as_ann.get("/hello/", headers={"X-API-Key": KEY})
    assert sorted(told(as_ann, "remaining", **{"X-API-Key": KEY})) == [("per-key", 4), ("per-user", 4)]
    assert told(as_ann, "remaining") == [("per-user", 4)]


def test_a_share_in_another_tier(make_rule: MakeRule, as_ann: Client, ann: User, free: Tier) -> None:
    make_rule("api", {free: [{"quota": 5}]}, partition_by=["user"])
    TierAssignment.objects.create(tier=free, user=ann, multiplier="0.001")
    tiers.forget()
    [limit] = me(as_ann)["limits"]
    assert limit["quota"] >= 0


def test_on_an_event_loop(make_rule: MakeRule, ann: User) -> None:
    make_rule("per-user", partition_by=["user"])
    client = AsyncClient()
    client.force_login(ann)

    async def ask() -> Any:
        responses = [await client.get("/limits/me/") for _ in range(3)]
        return [[limit["remaining"] for limit in response.json()["limits"]] for response in responses]

    assert async_to_sync(ask)() == [[5], [5], [5]]


def test_none_of_another_caller(make_rule: MakeRule, as_ann: Client) -> None:
    make_rule("per-user", partition_by=["user"])
    bob = Client()
    bob.force_login(User.objects.create(username="bob"))
    for _ in range(9):
        bob.get("/hello/")
    assert told(as_ann, "remaining") == [("per-user", 5)]
    for query in ("user=bob", "user=2", "partition=user:2", "tier=pro", "rule=per-user&format=json"):
        assert [limit["remaining"] for limit in as_ann.get(f"/limits/me/?{query}").json()["limits"]] == [5]


def test_where_redis_goes_away_in_between(make_rule: MakeRule, as_ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the middleware has charged cannot be given back, and what remains is not known; no more than that."""
    make_rule("per-ip", partition_by=["ip"])
    assert told(as_ann, "remaining") == [("per-ip", 5)]

    def gone(*_given: Any, **_options: Any) -> Any:
        raise EngineUnavailable("gone")

    for name in ("refund", "peek"):
        monkeypatch.setattr(type(backend.get_engine()), name, gone)
    assert told(as_ann, "remaining") == [("per-ip", None)]


def test_in_the_callers_language(make_rule: MakeRule, as_ann: Client, as_staff: Client, settings: Any) -> None:
    make_rule("api")
    settings.MIDDLEWARE = ["django.middleware.locale.LocaleMiddleware", *settings.MIDDLEWARE]
    german = {"Accept-Language": "de"}
    with translation.override("en-us"):  # what the middleware activates stays active
        own = me(as_ann, **german)
        wrong = as_staff.get("/limits/usage/", {"period": "2w"}, headers=german).json()
        unknown = as_staff.get("/limits/rules/none/", headers=german).json()
    assert own["limits"][0]["in_words"] == "5 pro Tag, Token-Bucket"
    assert own["usage"]["explanation"].startswith("Anfragen werden nach Regel und Stufe gezählt")
    assert wrong == {"period": ["Schreiben Sie eine Länge wie 90m, 36h oder 30d, höchstens 366d."]}
    assert unknown == {"detail": "Es gibt keine Regel „none“."}
