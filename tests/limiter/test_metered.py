"""Costs that are known only when the work is done: `limiter.charge`, synchronous and not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import pytest
from django.http import HttpRequest, StreamingHttpResponse
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.exceptions import LimitExceeded
from django_ratelimiter.limiter.metered import MeteredCost
from django_ratelimiter.testing import override_rules

from ..making import Clock, MakeRule
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


class Crowded:
    """An engine among other requests: after each of its calls, they charge unit by unit all that is left."""

    to_async = None

    def __init__(self, engine: Any, most: int = 1_000) -> None:
        self._engine, self._most, self.charge, self.allowed = engine, most, Charge("none", Limit(1, 1)), 0

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
        for _ in range(self._most):
            self.allowed += self._engine.check([self.charge])[0].allowed


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("on_redis", [True, False])
def test_request_during_settling_gets_only_what_is_refunded(
    spend: Callable[..., Any],
    make_rule: MakeRule,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: Algorithm,
    on_redis: bool,
) -> None:
    if not on_redis:
        request.getfixturevalue("clock")
    limit = {"max_delay_ms": 86_400_000} if algorithm == Algorithm.LEAKY_BUCKET else {}
    make_rule("rows", quota=100, algorithm=algorithm, limit=limit)
    crowded = Crowded(get_engine())
    monkeypatch.setattr(ENGINE, crowded)
    spend(40, ask(), cost=50)
    assert crowded.allowed == (50 if algorithm == Algorithm.CONCURRENCY else 60)


@settings(max_examples=60)
@given(steps=st.lists(st.integers(-12, 12), max_size=30))
@pytest.mark.parametrize("algorithm", [each for each in SPENDING if each != Algorithm.LEAKY_BUCKET])  # it delays
def test_quota_holds_while_charges_begin_and_settle_in_any_order(algorithm: Algorithm, steps: list[int]) -> None:
    running: list[MeteredCost] = []
    used = 0
    with (
        override_rules({"slug": "ten", "limits": [{"rate": "10/day", "algorithm": algorithm}]}),
        pytest.MonkeyPatch.context() as patch,
    ):
        crowded = Crowded(get_engine(), 2)
        patch.setattr(ENGINE, crowded)
        for units in steps:
            if units < 0 and running:
                charge = running.pop(units % len(running))
                charge.cost = min(-units - 1, charge.cost)
                used += charge.cost
                charge.__exit__()
            else:
                with suppress(LimitExceeded):
                    running.append(limiter.charge(ask(), cost=abs(units)).__enter__())
            assert remaining() == [10 - used - crowded.allowed - sum(charge.cost for charge in running)]


def test_refund_after_settling_refunds_what_is_still_charged(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock
) -> None:
    make_rule("rows", quota=10)
    decision = spend(3, ask(), cost=8).decision
    for _ in range(2):
        limiter.refund(decision)
        assert remaining() == [10]


def test_charge_that_was_refunded_during_the_block_is_not_refunded_again(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("rows", quota=10)
    limiter.check(ask(), cost=2)
    with limiter.charge(ask(), cost=8) as charge:
        limiter.refund(charge.decision)
        charge.cost = 3
    assert remaining() == [8]


@pytest.mark.parametrize("cost", [1, 9])
def test_rule_in_shadow_that_would_reject_is_not_charged(
    spend: Callable[..., Any], make_rule: MakeRule, clock: Clock, cost: int
) -> None:
    make_rule("rows", quota=10)
    make_rule("trial", quota=5, mode="shadow")
    spend(cost, ask(), cost=6)
    assert remaining() == [10 - cost, 5]


def test_estimate_stays_charged_if_it_cannot_be_settled(
    make_rule: MakeRule, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("rows", quota=10)
    with pytest.MonkeyPatch.context() as patch, limiter.charge(ask(), cost=8) as charge:
        charge.cost = 3
        patch.setattr(ENGINE, Broken())
    assert "could not be refunded" in caplog.text
    assert remaining() == [2]
    limiter.refund(charge.decision)
    assert remaining() == [10]


class TestStreams:
    """Parts of 3, 1 and 2 units, under a quota of 10, with an estimate of 8."""

    @pytest.fixture
    def send(self, either: Any, make_rule: MakeRule, clock: Clock) -> Callable[..., Any]:
        """Send this many parts, in the block or after it, and end the request."""
        make_rule("rows", quota=10)

        def work(number: int, is_returned: bool, parts: Any = PARTS, cost: Any = len) -> Any:
            request = ask()
            with ExitStack() as stack:
                stream = stack.enter_context(limiter.charge(request, cost=8)).stream(iter(parts), cost=cost)
                if is_returned:
                    stack.close()
                sent = [next(stream) for _ in range(number)]
                stream.close()
            request.close()
            return sent

        async def awork(number: int, is_returned: bool, parts: Any = PARTS, cost: Any = len) -> Any:
            request = ask()
            async with AsyncExitStack() as stack:
                charge = await stack.enter_async_context(limiter.charge(request, cost=8))
                stream = charge.stream(as_they_come(parts), cost=cost)
                if is_returned:
                    await stack.aclose()
                sent = [await anext(stream) for _ in range(number)]
                await stream.aclose()
            request.close()
            return sent

        return either(work, awork)  # type: ignore[no-any-return]

    @pytest.mark.parametrize("is_returned", [False, True])
    @pytest.mark.parametrize(("number", "left"), [(0, 10), (1, 7), (2, 6), (3, 4)])
    def test_are_charged_for_what_was_sent(
        self, send: Callable[..., Any], number: int, left: int, is_returned: bool
    ) -> None:
        assert send(number, is_returned) == PARTS[:number]
        assert remaining() == [left]

    def test_are_charged_for_what_was_sent_before_an_error(self, send: Callable[..., Any]) -> None:
        def failing() -> Iterator[str]:
            yield "four"
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            send(2, False, failing())
        assert remaining() == [6]

    def test_go_on_if_the_cost_of_a_part_is_not_known(
        self, send: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        assert send(3, True, cost=lambda part: len(part) if part == "one" else None) == PARTS
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


def test_it_begins_only_if_the_first_cost_passes(spend: Callable[..., Any], make_rule: MakeRule, clock: Clock) -> None:
    make_rule("rows", quota=10)
    spend(25, ask())
    with pytest.raises(LimitExceeded, match="rows"):
        spend(1, ask())
    assert remaining() == [0]


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
