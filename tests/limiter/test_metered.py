"""Costs that are known only when the work is done: `limiter.charge`, synchronous and not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from django.http import HttpRequest, StreamingHttpResponse
from django.test import override_settings

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.engine.coroutines import run_sync
from django_ratelimiter.exceptions import LimitExceeded
from django_ratelimiter.signals import quota_reached

from ..counting import sums_of
from ..making import Clock, MakeRule
from .test_events import receiving
from .test_limiter import Broken
from .test_refunds import ENGINE, ask, remaining

pytestmark = pytest.mark.django_db(transaction=True)

SPENDING = [algorithm for algorithm in Algorithm if algorithm != Algorithm.CONCURRENCY]

PARTS = ["one", "2", "to"]


async def as_they_come(parts: Iterable[str]) -> AsyncIterator[str]:
    for part in parts:
        yield part


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
def test_the_cost_at_the_end_is_what_is_spent(
    spend: Callable[..., Any], make_rule: MakeRule, algorithm: Algorithm, cost: int, left: int
) -> None:
    limit = {"max_delay_ms": 86_400_000} if algorithm == Algorithm.LEAKY_BUCKET else {}
    make_rule("rows", quota=10, algorithm=algorithm, limit=limit)
    charge = spend(cost, ask())
    verdict = limiter.peek(ask(), cost=left or 1).results[0].verdict
    assert verdict is not None
    assert verdict.allowed is (left > 0)
    assert charge.decision.results[0].verdict.remaining == left
    assert left == 10 or not limiter.peek(ask(), cost=left + 1).allowed
    if not left:
        with pytest.raises(LimitExceeded, match="rows"):
            spend(1, ask())
    assert sums_of(get_engine(), "allowed") == {"rows": (1,)}, "one request"


class Crowded:
    """An engine among other requests: after each of its calls, they charge unit by unit all that is left."""

    to_async = None

    def __init__(self, engine: Any) -> None:
        self._engine, self.charge, self.allowed = engine, Charge("none", Limit(1, 1)), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def check(self, charges: Any, **options: Any) -> Any:
        answer = self._engine.check(charges, **options)
        [self.charge] = [each._replace(cost=1, usage=None) for each in charges] or [self.charge]
        self.crowd()
        return answer

    def refund(self, verdicts: Any) -> None:
        self._engine.refund(verdicts)
        self.crowd()

    def crowd(self) -> None:
        while self._engine.check([self.charge])[0].allowed:
            self.allowed += 1


@pytest.mark.parametrize("algorithm", Algorithm)
def test_request_during_settling_gets_only_what_is_refunded(
    spend: Callable[..., Any],
    make_rule: MakeRule,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Algorithm,
) -> None:
    limit = {"max_delay_ms": 86_400_000} if algorithm == Algorithm.LEAKY_BUCKET else {}
    make_rule("rows", quota=100, algorithm=algorithm, limit=limit)
    crowded = Crowded(get_engine())
    monkeypatch.setattr(ENGINE, crowded)
    spend(40, ask(), cost=50)
    assert crowded.allowed == (50 if algorithm == Algorithm.CONCURRENCY else 60)


def test_refund_after_settling_refunds_what_is_still_charged(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock
) -> None:
    make_rule("rows", quota=10)
    limiter.check(ask(), cost=2)
    decision = spend(3, ask(), cost=8).decision
    assert remaining() == [5]
    with limiter.charge(ask(), cost=5) as charge:
        limiter.refund(charge.decision)
        charge.cost = 4
    assert remaining() == [5], "it is not refunded again"
    limiter.refund(decision)
    assert remaining() == [8]


@pytest.mark.parametrize("cost", [1, 9])
def test_rule_in_shadow_that_would_reject_is_not_charged(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock, cost: int
) -> None:
    make_rule("rows", quota=10)
    make_rule("trial", quota=5, mode="shadow")
    spend(cost, ask(), cost=6)
    assert remaining() == [10 - cost, 5]


class TestStreams:
    """Parts of 3, 1 and 2 units, under a quota of 10, with an estimate of 8."""

    @pytest.fixture
    def send(self, either: Any, make_rule: MakeRule, clock: Clock) -> Callable[..., Any]:
        """Send this many parts after the block, and end the request."""
        make_rule("rows", quota=10)

        def work(number: int, parts: Any = PARTS, cost: Any = len) -> Any:
            request = ask()
            with limiter.charge(request, cost=8) as charge:
                stream: Any = charge.stream(iter(parts), cost=cost)
            sent = [next(stream) for _ in range(number)]
            stream.close()
            request.close()
            return sent

        async def awork(number: int, parts: Any = PARTS, cost: Any = len) -> Any:
            request = ask()
            async with limiter.charge(request, cost=8) as charge:
                stream: Any = charge.stream(as_they_come(parts), cost=cost)
            sent = [await anext(stream) for _ in range(number)]
            await stream.aclose()
            request.close()
            return sent

        return either(work, awork)  # type: ignore[no-any-return]

    @pytest.mark.parametrize(("number", "left"), [(0, 10), (1, 7), (2, 6), (3, 4)])
    def test_are_charged_for_what_was_sent(self, send: Callable[..., Any], number: int, left: int) -> None:
        assert send(number) == PARTS[:number]
        assert remaining() == [left]

    def test_that_end_in_the_block_are_charged_and_later_ones_raise(self, make_rule: MakeRule, clock: Clock) -> None:
        make_rule("rows", quota=10)
        with limiter.charge(ask(), cost=8) as charge:
            for part in charge.stream(PARTS, cost=len):
                if part == "2":
                    break
        assert remaining() == [6]
        with pytest.raises(RuntimeError, match="inside its block"):
            next(charge.stream(PARTS, cost=len))
        with pytest.raises(RuntimeError, match="inside its block"):
            run_sync(anext(charge.stream(as_they_come(PARTS), cost=len)))

    def test_go_on_if_the_cost_of_a_part_is_not_known(
        self, send: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        assert send(3, cost=lambda part: len(part) if part == "one" else None) == PARTS
        assert remaining() == [2]
        assert [record.message for record in caplog.records] == [
            "The cost of a stream is not known: at least its estimate is charged."
        ]

    def test_keep_their_estimate_until_the_response_has_ended(self, make_rule: MakeRule, clock: Clock) -> None:
        make_rule("rows", quota=10)
        request, left = ask(), []
        with limiter.charge(request, cost=8) as charge:
            charge.cost = 2  # such as those of a prompt
            response = StreamingHttpResponse(charge.stream(PARTS, cost=len))
        for _ in response:
            left += remaining()
        assert left == [2, 2, 2]
        request.close()
        assert remaining() == [2]


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


def test_quota_that_is_reached_by_the_work_is_signalled(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock
) -> None:
    make_rule("rows", quota=10, algorithm="fixed_window")
    sent: list[int] = []
    with receiving(quota_reached, lambda percent, **_named: sent.append(percent)):
        spend(8, ask())
        spend(4, ask())
    assert sent == [80, 100]


@pytest.mark.parametrize(("cost", "told"), [(1, "3 units of a request's cost could not be ch"), (6, "not be refunded")])
def test_without_the_engine_at_the_end_the_work_is_done_all_the_same(
    make_rule: MakeRule, clock: Clock, caplog: pytest.LogCaptureFixture, cost: int, told: str
) -> None:
    make_rule("rows", quota=10)
    with pytest.MonkeyPatch.context() as patch, limiter.charge(ask(), cost=cost) as charge:
        charge.cost = 4
        patch.setattr(ENGINE, Broken())
    assert charge.decision.allowed
    assert told in caplog.text
    assert remaining() == [10 - cost]
    limiter.refund(charge.decision)
    assert remaining() == [10]


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "ENABLED": False})
def test_switched_off(spend: Callable[..., Any], make_rule: MakeRule) -> None:
    make_rule("rows", quota=1)
    assert spend(9, ask()).decision == limiter.peek(ask())
