"""Requests held for their turn in a queue, by each entry point, with a clock that only sleeping moves."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import AsyncClient, Client, RequestFactory

from django_ratelimiter import limiter

from ..making import Clock, MakeRule
from .test_limiter import Broken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

#: One request each 2 seconds, at most 3 under way: the one that is served, and two that wait 2 and 4 seconds.
QUEUE: dict[str, Any] = {"quota": 1, "algorithm": "leaky_bucket"}
LIMIT = {"window_seconds": 2, "burst": 3}


def ask() -> HttpRequest:
    return RequestFactory().get("/")


@pytest.mark.parametrize("path", ["/plain/", "/native/", "/no/such/"])
def test_requests_at_once_are_served_one_after_the_other(
    async_client: AsyncClient, make_rule: MakeRule, clock: Clock, path: str
) -> None:
    make_rule("queue", **QUEUE, limit=LIMIT)
    turns = []
    for _ in range(4):
        clock.now_us = 1_700_000_000_000_000
        turns.append((async_to_sync(async_client.get)(path).status_code, clock.seconds()))
    found = 404 if path == "/no/such/" else 200
    assert turns == [(found, 0), (found, 2), (found, 4), (429, 0)]


@pytest.mark.parametrize(
    ("max_delay_ms", "slept", "last_retry_after"), [(0, [], "2"), (2_000, [2], "2"), (9_000, [2, 4], "2")]
)
def test_a_synchronous_worker_holds_what_the_rule_grants_and_rejects_the_rest(
    client: Client, make_rule: MakeRule, clock: Clock, max_delay_ms: int, slept: list[float], last_retry_after: str
) -> None:
    make_rule("queue", **QUEUE, limit={**LIMIT, "max_delay_ms": max_delay_ms})
    answers = []
    for _ in range(4):
        clock.now_us = 1_700_000_000_000_000
        answers.append(client.get("/plain/"))
    assert clock.slept == slept
    admitted = 1 + len(slept)
    assert [answer.status_code for answer in answers] == [200] * admitted + [429] * (4 - admitted)
    assert answers[-1]["Retry-After"] == last_retry_after
    clock.now_us = 1_700_000_002_000_000
    assert client.get("/plain/").status_code == 200


@pytest.mark.parametrize("stage_of_the_queue", ["middleware", "throttle", "both"])
def test_each_delay_is_served_once_though_it_passes_two_entry_points(
    get: Any, make_rule: MakeRule, clock: Clock, stage_of_the_queue: str
) -> None:
    limit = {**LIMIT, "max_delay_ms": 60_000}
    if stage_of_the_queue != "throttle":
        make_rule("early", **QUEUE, limit=limit)
    if stage_of_the_queue != "middleware":
        make_rule("late", **QUEUE, limit={**limit, "window_seconds": 3}, partition_by=["user"])
    User.objects.create(username="ann")
    for _ in range(2):
        clock.now_us = 1_700_000_000_000_000
        assert get("/throttled/", headers={"X-Name": "ann"}).status_code == 200
    assert sum(clock.slept) == {"middleware": 2, "throttle": 3, "both": 3}[stage_of_the_queue]


def test_of_several_queues_the_longest_wait_counts(get: Any, make_rule: MakeRule, clock: Clock) -> None:
    for slug, window in (("a", 2), ("b", 5), ("c", 1)):
        make_rule(slug, **QUEUE, limit={"window_seconds": window, "burst": 3, "max_delay_ms": 60_000})
    get("/plain/")
    get("/plain/")
    assert clock.slept == [5]


def test_shadow_rules_hold_nobody(get: Any, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("watched", **QUEUE, limit={**LIMIT, "max_delay_ms": 60_000}, mode="shadow")
    assert [get("/plain/").status_code for _ in range(4)] == [200] * 4
    assert clock.slept == []


def test_a_rejected_request_is_not_held(get: Any, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("queue", **QUEUE, limit={**LIMIT, "max_delay_ms": 60_000})
    make_rule("tight", quota=1)
    assert [get("/plain/").status_code for _ in range(3)] == [200, 429, 429]
    assert clock.slept == []


def test_decisions_without_the_engine_are_held_likewise(
    get: Any, make_rule: MakeRule, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule(
        "queue", quota=2, algorithm="leaky_bucket", limit={"window_seconds": 4, "max_delay_ms": 60_000, "burst": 6}
    )
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    for _ in range(3):
        clock.now_us = 1_700_000_000_000_000
        assert get("/plain/").status_code == 200
    assert clock.slept == [4, 8]  # at half the quota


def test_the_delay_is_what_the_latest_call_decided(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("queue", **QUEUE, limit={**LIMIT, "max_delay_ms": 60_000})
    limiter.check(ask())
    request = ask()
    assert limiter.check(request).delay == 2
    assert limiter.check(request).delay == 0
    assert request.ratelimit.delay == 0  # type: ignore[attr-defined]
    assert limiter.check(request, scope="other").delay == 0
