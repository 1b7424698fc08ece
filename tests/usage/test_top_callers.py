"""The top callers over all rules: counted once a request, collected, and read over any period."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth import get_user_model
from django.test import RequestFactory

from django_ratelimiter.decision import Decision
from django_ratelimiter.identity import digest
from django_ratelimiter.models import TopCaller
from django_ratelimiter.usage.collector.collect import collect

from ..making import Clock, MakeRule

pytestmark = pytest.mark.django_db(transaction=True)


def stored() -> dict[tuple[str, str, str], tuple[int, int]]:
    rows = TopCaller.objects.values_list("identity", "granularity", "partition", "allowed", "rejected")
    return {tuple(key): (allowed, rejected) for *key, allowed, rejected in rows}  # type: ignore[misc]


def test_each_request_counts_once_for_each_identity_of_its_caller(
    check: Callable[..., Decision], make_rule: MakeRule, clock: Clock
) -> None:
    """Also if a further call decides more rules for it, and whatever rules by several identities say."""
    make_rule("site", quota=9, partition_by=["user"])
    make_rule("pages", quota=2, partition_by=["user"])
    make_rule("hosts", quota=9, partition_by=["ip"])
    make_rule("view", quota=9, partition_by=["user"], scope="view")
    make_rule("both", quota=9, partition_by=["user", "ip"])
    make_rule("all", quota=9, partition_by=[])
    user = get_user_model().objects.create_user("ada")
    for _ in range(3):
        request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
        request.user = user
        check(request)
        check(request, scope="view")
    clock.sleep(60)
    for _ in range(2):
        collect()
        ada, address = digest(f"user:{user.pk}"), digest("ip:192.0.2.7")
        assert stored() == {
            (identity, granularity, who): (2, 1) if identity == "user" else (3, 0)
            for identity, who in (("user", ada), ("ip", address))
            for granularity in ("hour", "day")
        }
