"""Costs that are known only when the work is done: `limiter.charge`, synchronous and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import override_settings

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Algorithm
from django_ratelimiter.exceptions import LimitExceeded

from ..making import Clock, MakeRule
from .test_limiter import Broken
from .test_refunds import ENGINE, ask, remaining

pytestmark = pytest.mark.django_db(transaction=True)

SPENDING = [algorithm for algorithm in Algorithm if algorithm != Algorithm.CONCURRENCY]


@pytest.fixture
def spend(either: Any) -> Callable[..., Any]:
    """Do work of this cost: `spend(cost, request, **options)`."""

    def work(rows: int, request: HttpRequest, **options: Any) -> Any:
        with limiter.charge(request, **options) as charge:
            charge.cost = rows
        return charge

    async def awork(rows: int, request: HttpRequest, **options: Any) -> Any:
        async with limiter.charge(request, **options) as charge:
            charge.cost = rows
        return charge

    return either(work, awork)  # type: ignore[no-any-return]


@pytest.mark.once
@pytest.mark.parametrize("algorithm", SPENDING)
@pytest.mark.parametrize(("cost", "left"), [(0, 10), (1, 9), (4, 6), (10, 0), (99, 0)])
@pytest.mark.parametrize("on_redis", [True, False])
def test_the_cost_at_the_end_is_what_is_spent(
    spend: Callable[..., Any],
    make_rule: MakeRule,
    request: pytest.FixtureRequest,
    algorithm: Algorithm,
    cost: int,
    left: int,
    on_redis: bool,
) -> None:
    if not on_redis:
        request.getfixturevalue("clock")
    limit = {"max_delay_ms": 86_400_000} if algorithm == Algorithm.LEAKY_BUCKET else {}
    make_rule("rows", quota=10, algorithm=algorithm, limit=limit)
    charge = spend(cost, ask())
    verdict = limiter.peek(ask(), cost=left or 1).results[0].verdict
    assert verdict is not None
    assert verdict.allowed is (left > 0)
    assert charge.decision.results[0].verdict.remaining == left
    assert left == 10 or not limiter.peek(ask(), cost=left + 1).allowed


def test_it_begins_only_if_the_first_cost_passes(spend: Callable[..., Any], make_rule: MakeRule, clock: Clock) -> None:
    make_rule("rows", quota=10)
    spend(25, ask())
    with pytest.raises(LimitExceeded, match="rows"):
        spend(1, ask())
    assert remaining() == [0]


def test_what_was_asked_for_too_much_is_given_back(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock
) -> None:
    make_rule("rows", quota=10)
    assert spend(2, ask(), cost=8).decision.results[0].verdict is not None
    assert remaining() == [8]
    with pytest.raises(LimitExceeded):
        spend(2, ask(), cost=9)


def test_only_what_this_block_was_charged_grows(spend: Callable[..., Any], make_rule: MakeRule, clock: Clock) -> None:
    make_rule("every", quota=10)
    make_rule("rows", quota=10, scope="rows")
    request = ask()
    limiter.check(request)
    spend(5, request, scope="rows")
    left = [result.verdict.remaining for result in limiter.peek(ask(), scope="rows").results if result.verdict]
    assert left == [9, 5]


def test_an_error_in_the_block_goes_through_and_the_work_is_charged(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("rows", quota=10)
    charge = limiter.charge(ask())
    with pytest.raises(KeyError), charge:
        raise KeyError(charge.__setattr__("cost", 4))
    assert remaining() == [6]


@pytest.mark.parametrize("wrong", [None, "7", 1.5, True, -1, [3]])
def test_what_is_no_cost_is_rejected_where_it_is_set(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock, wrong: Any
) -> None:
    make_rule("rows", quota=10)
    with pytest.raises((TypeError, ValueError), match=r"cost: must be .*not "):
        limiter.charge(ask(), cost=wrong)
    with pytest.raises((TypeError, ValueError), match=r"cost: must be .*not "):
        spend(wrong, ask(), cost=3)
    assert remaining() == [7], "what it began with is spent"


def test_a_lease_is_the_requests(spend: Callable[..., Any], make_rule: MakeRule, clock: Clock) -> None:
    make_rule("in-flight", quota=5, algorithm="concurrency", limit={"window_seconds": 60})
    request = ask()
    spend(1, request, cost=3)
    assert remaining() == [2]
    request.close()
    assert remaining() == [5]


def test_one_request_is_counted(spend: Callable[..., Any], make_rule: MakeRule) -> None:
    make_rule("rows", quota=10)
    spend(5, ask())
    (batch,) = get_engine().take_usage(now_us=2**52)
    assert [count.allowed for count in get_engine().read_usage(batch)] == [1]


def test_without_the_engine_it_is_spent_here(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule("rows", quota=10)
    monkeypatch.setattr(ENGINE, Broken())
    spend(4, ask())
    spend(1, ask())
    with pytest.raises(LimitExceeded):
        spend(1, ask())


def test_without_the_engine_at_the_end_the_work_is_done_all_the_same(
    make_rule: MakeRule, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("rows", quota=10)
    with pytest.MonkeyPatch.context() as patch, limiter.charge(ask()) as charge:
        charge.cost = 4
        patch.setattr(ENGINE, Broken())
    assert charge.decision.allowed
    assert "3 units of a request's cost could not be charged" in caplog.text
    assert remaining() == [9]


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "ENABLED": False})
def test_switched_off(spend: Callable[..., Any], make_rule: MakeRule) -> None:
    make_rule("rows", quota=1)
    assert spend(9, ask()).decision == limiter.peek(ask())
