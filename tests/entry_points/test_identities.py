"""Identities through the middleware: what is chosen, invented or missing finds no counter of its own."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client, override_settings
from django.test.client import MULTIPART_CONTENT

from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

OWN = {"CACHE_ALIAS": "ratelimit", "IDENTITIES": {"tenant": "tests.entry_points.test_identities.tenant_of"}}


def tenant_of(request: Any) -> str | None:
    return request.headers.get("X-Host-Tenant")


def statuses(client: Client, times: int, path: str = "/plain/", **sent: Any) -> list[int]:
    return [client.post(path, **sent).status_code for _ in range(times)]


def counters(redis_client: redis.Redis, slug: str) -> int:
    return len(redis_client.keys(f"*:{slug}:*"))


def test_a_random_api_key_with_each_request_opens_no_fresh_counter(
    client: Client, make_rule: MakeRule, redis_client: redis.Redis
) -> None:
    make_rule("keys", quota=3, partition_by=["api_key"], missing_partition="ip")
    sent = [client.get("/plain/", headers={"X-API-Key": f"invented-{number}"}).status_code for number in range(9)]
    assert sent == [200] * 3 + [429] * 6
    assert counters(redis_client, "keys") == 1


@pytest.mark.parametrize(("missing", "told"), [("skip", [200] * 3), ("deny", [429] * 3), ("ip", [200, 200, 429])])
def test_clients_without_the_header_share_nothing_with_those_who_have_it(
    client: Client, make_rule: MakeRule, missing: str, told: list[int]
) -> None:
    make_rule("devices", quota=2, partition_by=["header:X-Device"], missing_partition=missing)
    assert statuses(client, 3, headers={"X-Device": "127.0.0.1"}) == [200, 200, 429]
    assert statuses(client, 3, headers={"X-Device": "ip:127.0.0.1"}) == [200, 200, 429]
    assert statuses(client, 3) == told
    assert statuses(client, 1, REMOTE_ADDR="192.0.2.7") == told[:1]


def test_who_is_rejected_for_want_of_an_identity_is_promised_nothing(client: Client, make_rule: MakeRule) -> None:
    make_rule("devices", quota=2, partition_by=["header:X-Device"], missing_partition="deny")
    rejected = client.get("/plain/")
    assert rejected["RateLimit"] == '"devices";r=0'
    assert rejected["X-RateLimit-Remaining"] == "0"
    assert "Retry-After" not in rejected
    assert client.get("/plain/", headers={"X-Device": "1"})["RateLimit"].startswith('"devices";r=1;t=')


@pytest.mark.parametrize("kind", ["application/json", MULTIPART_CONTENT])
def test_a_field_of_the_body_splits_counters(client: Client, make_rule: MakeRule, kind: str) -> None:
    make_rule("log-ins", quota=1, partition_by=["field:email"], missing_partition="deny")
    for email in ("ann", "bob"):
        sent = {"data": {"email": email}, "content_type": kind}
        assert statuses(client, 2, **sent) == [200, 429]
    assert statuses(client, 1, data={"mail": "ann"}) == [429]


def test_parts_of_the_path_and_ones_own_identities_split_counters(client: Client, make_rule: MakeRule) -> None:
    with override_settings(RATELIMITER=OWN):
        make_rule("items", quota=1, partition_by=["path:pk", "tenant"])
        acme = {"headers": {"X-Host-Tenant": "acme"}}
        assert statuses(client, 2, "/items/1/", **acme) == [200, 429]
        assert statuses(client, 2, "/items/2/", **acme) == [200, 429]
        assert statuses(client, 2, "/items/1/", headers={"X-Host-Tenant": "other"}) == [200, 429]
        assert statuses(client, 3, "/items/1/") == [200] * 3
        assert statuses(client, 3, "/plain/", **acme) == [200] * 3


def test_event_loops_find_the_same(make_rule: MakeRule, async_client: AsyncClient) -> None:
    post = async_to_sync(async_client.post)
    with override_settings(RATELIMITER=OWN):
        make_rule("tenants", quota=1, partition_by=["tenant", "field:email"])
        make_rule("sessions", quota=9, partition_by=["session"], missing_partition="ip")
        for email in ("ann", "bob"):
            sent = {"data": {"email": email}, "content_type": "application/json", "headers": {"X-Host-Tenant": "acme"}}
            assert [post("/native/", **sent).status_code for _ in range(2)] == [200, 429]
