"""Units: what requests cost is counted beside their number, whatever becomes of them later."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import redis
from django.http import HttpResponse

from django_ratelimiter import backend, limiter
from django_ratelimiter.engine.coroutines import run_sync
from django_ratelimiter.limiter import refunds
from django_ratelimiter.limiter.io import THREAD
from django_ratelimiter.models import UsageBucket
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.reports.totals import month
from django_ratelimiter.usage.times import now
from tests.counting import sums_of
from tests.making import Clock, MakeRule
from tests.usage.test_one_outcome import Check, get, outage

pytestmark = pytest.mark.django_db(transaction=True)


def counted() -> dict[str, tuple[int, ...]]:
    """The allowed requests of each rule, and their units, over all minutes."""
    return sums_of(backend.get_engine(), "allowed", "units")


def test_cost_of_the_rule_or_of_the_request_is_counted(rule: Callable[..., None], check: Check) -> None:
    rule("five", cost=5)
    rule("one", scope="asked")
    rule("trial", scope="asked", mode="shadow", cost=2)
    for cost in (None, 1, 7, 0):
        check(get(), scope="asked", cost=cost)
    assert counted() == {"five": (4, 5 + 1 + 7), "one": (4, 1 + 1 + 7), "trial": (4, 2 + 1 + 7)}


def test_rejected_request_costs_nothing_also_where_it_was_charged_before(
    rule: Callable[..., None], check: Check
) -> None:
    rule("early", cost=3, scope="early")
    rule("late", quota=10, scope="late")
    for cost in (7, None, 9, 7):
        check(request := get(), scope="early", cost=cost)
        check(request, scope="late", cost=9)
    assert counted() == {"early": (1, 7), "late": (1, 9)}


def test_sizes_make_no_fields(make_rule: MakeRule, check: Check, redis_client: redis.Redis) -> None:
    make_rule("tokens", quota=100_000, partition_by=["ip"], scope="asked")
    for cost in range(2, 60):
        check(get(), scope="asked", cost=cost)
    sizes = [redis_client.hlen(key) for key in redis_client.scan_iter("{rl:0}:usage:*")]
    assert max(sizes) == 3  # what began the hash, requests, and units
    assert counted() == {"tokens": (58, sum(range(2, 60)))}


def test_refunded_request_is_allowed_with_no_units(rule: Callable[..., None], check: Check) -> None:
    rule("logins", charge_when="failure", cost=2)
    rule("all")
    for status in (200, 403, 200):
        check(request := get())
        run_sync(refunds.refund_unearned(THREAD, request, HttpResponse(status=status)))
    limiter.refund(check(get()))
    assert counted() == {"logins": (4, 2), "all": (4, 3)}


def test_units_of_a_lease_that_has_ended_stay(make_rule: MakeRule, check: Check) -> None:
    make_rule("uploads", quota=2, algorithm="concurrency", partition_by=["ip"])
    for _ in range(5):
        check(request := get())
        request.close()
    assert counted() == {"uploads": (5, 5)}


@pytest.mark.parametrize("quota", [10_000, 12])
@pytest.mark.parametrize("cost", [25, 4, 10])
def test_settled_cost_is_counted_in_full(rule: Callable[..., None], quota: int, cost: int) -> None:
    rule("tokens", scope="asked", quota=quota)
    rule("several", scope="asked", failure_policy="open")
    with limiter.charge(get(), scope="asked", cost=10) as charge:
        charge.cost = cost
    assert counted() == {"tokens": (1, cost), "several": (1, cost)}


def test_settled_cost_counts_in_its_own_minute(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("tokens", quota=100, partition_by=["ip"], scope="asked")
    for cost in (25, 4):
        with limiter.charge(get(), scope="asked", cost=10) as charge:
            clock.sleep(60)
            charge.cost = cost
    clock.sleep(60)
    for _ in range(2):
        collect()
        rows = UsageBucket.objects.filter(granularity="minute").order_by("start")
        assert [*rows.values_list("allowed", "units")] == [(1, 10), (1, 25), (0, -6)]
    for granularity in ("hour", "day"):
        assert UsageBucket.objects.get(granularity=granularity).units == 29


def test_units_without_redis_are_counted(make_rule: MakeRule, check: Check) -> None:
    make_rule("local", quota=1_000, partition_by=["ip"], failure_policy="local", cost=2)
    make_rule("open", quota=1_000, partition_by=["ip"], failure_policy="open")
    make_rule("view", quota=4, partition_by=["ip"], scope="view", failure_policy="local")
    with outage():
        check(get(), cost=7)
        limiter.refund(check(get(), cost=5))
        with limiter.charge(get(), cost=3) as charge:
            charge.cost = 9
        check(request := get(), cost=6)
        assert not check(request, scope="view", cost=5).allowed
    assert counted()["local"] == (3, 7 + 9)


def test_settled_cost_that_cannot_be_charged_is_counted(make_rule: MakeRule) -> None:
    make_rule("tokens", quota=1_000, partition_by=["ip"], scope="asked")
    with ExitStack() as stack, limiter.charge(get(), scope="asked", cost=10) as charge:
        charge.cost = 40
        stack.enter_context(outage())
    assert counted() == {"tokens": (1, 40)}


def test_report_shows_units_only_of_other_costs(make_rule: MakeRule, check: Check, clock: Clock) -> None:
    clock.now_us = time.time_ns() // 1_000 - 120_000_000
    make_rule("five", quota=1_000, partition_by=["ip"], cost=5)
    make_rule("one", quota=1_000, partition_by=["ip"])
    check(get())
    clock.sleep(60)
    collect()
    totals = {each.rule_slug: each.figures for each in Report(month(now())).totals}
    assert (totals["five"].units, totals["five"].has_costs) == (5, True)
    assert (totals["one"].units, totals["one"].has_costs) == (1, False)
