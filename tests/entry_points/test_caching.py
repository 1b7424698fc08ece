"""What shared caches are told: a response varies by cookie only where the decision may depend on user or session."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter.models import Tier, TierAssignment

from .conftest import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]


def vary(client: Client) -> list[str | None]:
    answers = [client.get("/plain/"), async_to_sync(AsyncClient().get)("/native/")]
    assert [answer.status_code for answer in answers] == [200, 200]
    return [answer.headers.get("Vary") for answer in answers]


@pytest.mark.parametrize("names", [[], ["ip"], ["header:X-Device"], ["api_key"]])
def test_rules_that_ask_for_nobody_leave_responses_to_caches(
    client: Client, make_rule: MakeRule, names: list[str]
) -> None:
    make_rule("all", quota=9, partition_by=names, missing_partition="ip")
    assert vary(client) == [None, None]


@pytest.mark.parametrize("names", [["user"], ["session"], ["user", "ip"]])
def test_rules_by_user_or_session(client: Client, make_rule: MakeRule, names: list[str]) -> None:
    make_rule("all", quota=9, partition_by=names, missing_partition="ip")
    assert vary(client) == ["Cookie", "Cookie"]


def test_tiers(client: Client, make_rule: MakeRule) -> None:
    tier = Tier.objects.create(slug="pro", name="Pro")
    TierAssignment.objects.create(tier=tier, partition="ip:192.0.2.7", multiplier=2)
    make_rule("all", quota=9, partition_by=["ip"])
    assert vary(client) == ["Cookie", "Cookie"]


def test_nobodys_session_is_read_in_vain(
    client: Client, make_rule: MakeRule, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    make_rule("all", quota=9, partition_by=["ip"])
    client.force_login(User.objects.create(username="ann"))
    client.get("/plain/")
    with django_assert_num_queries(0):
        client.get("/plain/")
