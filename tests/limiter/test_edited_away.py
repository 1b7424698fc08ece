"""Templates go when their rules are edited away: a process that lives for months sees thousands of versions."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.engine.call import CallTemplate
from django_ratelimiter.rules import cache

from ..making import make_rule


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.urls")
@pytest.mark.parametrize("is_in_memory", [False, True])
@pytest.mark.parametrize("sync_interval_ms", [None, 60_000])
def test_templates_go_with_their_version(
    client: Client,
    admin_user: User,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    sync_interval_ms: int | None,
    is_in_memory: bool,
) -> None:
    # Which callers are sampled is kept with the template, at most so many times: these go together.
    monkeypatch.setattr("django_ratelimiter.engine.redis.partition_notes.MAX_REMEMBERED", 2)
    if is_in_memory:
        settings.RATELIMITER = {**settings.RATELIMITER, "CACHE_ALIAS": None}
    with cache.editing(admin_user, "a rule"):
        rule = make_rule("all", 9_000, partition_by=["ip"], sync_interval_ms=sync_interval_ms)

    def edit(times: int) -> int:
        for number in range(times):
            with cache.editing(admin_user, "another text"):
                rule.description = f"text {number}"
                rule.save()
            for _ in range(3):
                assert client.get("/hello/").status_code == 200
        gc.collect()
        return sum(type(each) is CallTemplate for each in gc.get_objects())

    few = edit(5)
    assert edit(15) <= few + 5  # one or two wait for a cache to be full
