"""Slots: turns for work that no request stands for, synchronous and not, with a clock that only waiting moves."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import RequestFactory, override_settings

from django_ratelimiter import backend, limiter
from django_ratelimiter.decision import Decision
from django_ratelimiter.exceptions import LimitExceeded
from django_ratelimiter.limiter import io
from django_ratelimiter.models import RuleLimit, Tier

from ..making import Clock, MakeRule, failing
from .test_limiter import Broken

pytestmark = pytest.mark.django_db(transaction=True)

Enter = Callable[..., Decision]
QUEUE: dict[str, Any] = {"quota": 1, "algorithm": "leaky_bucket", "limit": {"window_seconds": 2, "burst": 3}}
LEASES: dict[str, Any] = {"quota": 1, "algorithm": "concurrency", "limit": {"window_seconds": 60}}


@pytest.fixture
def enter(either: Any) -> Enter:
    """Enter a slot of the scope `stripe` and leave it: `enter(body, **options)`."""

    def run(body: Callable[[], object] = lambda: None, **options: Any) -> Decision:
        with limiter.slot("stripe", **options) as decision:
            body()
        return decision

    async def arun(body: Callable[[], object] = lambda: None, **options: Any) -> Decision:
        async with limiter.slot("stripe", **options) as decision:
            body()
        return decision

    return either(run, arun)  # type: ignore[no-any-return]


def test_calls_at_once_go_out_one_after_the_other(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    starts = []
    for _ in range(3):
        clock.now_us = 1_700_000_000_000_000
        enter(lambda: starts.append(clock.seconds()))
    assert starts == [0, 2, 4]


@pytest.mark.parametrize(
    ("max_wait", "waited"), [(0, None), (1.5, None), (1.999, None), (2, 2.0), (3, 2.0), (None, 2.0)]
)
def test_nobody_waits_longer_than_allowed_nor_in_vain(
    enter: Enter, make_rule: MakeRule, clock: Clock, max_wait: float | None, waited: float | None
) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    enter()
    if waited is None:
        with pytest.raises(LimitExceeded, match=r"^Rejected by out; would pass in") as caught:
            enter(max_wait=max_wait)
        assert caught.value.retry_after == pytest.approx(2 - max_wait if max_wait else 2)
        assert [str(result.rule) for result in caught.value.decision.rejected_by] == ["out"]
        assert clock.slept == []
    else:
        enter(max_wait=max_wait)
        assert clock.slept == [waited]


# In a full queue: until there is a place, and then until it is its turn.
@pytest.mark.parametrize(("max_wait", "slept"), [(5.9, []), (6, [2, 4]), (None, [2, 4])])
def test_a_place_in_a_full_queue_is_waited_for_unless_it_would_come_too_late(
    enter: Enter, make_rule: MakeRule, clock: Clock, max_wait: float | None, slept: list[float]
) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    for _ in range(3):
        clock.now_us = 1_700_000_000_000_000
        enter()
    clock.now_us = 1_700_000_000_000_000
    clock.slept.clear()
    if slept:
        enter(max_wait=max_wait)
    else:
        with pytest.raises(LimitExceeded):
            enter(max_wait=max_wait)
    assert clock.slept == slept


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log", "token_bucket", "gcra"])
def test_other_limits_are_waited_for_too(enter: Enter, make_rule: MakeRule, clock: Clock, algorithm: str) -> None:
    make_rule("out", 1, scope="stripe", algorithm=algorithm, limit={"window_seconds": 10})
    for number in range(3):
        enter(max_wait=10)
        assert len(clock.slept) == number
    with pytest.raises(LimitExceeded):
        enter(max_wait=1)
    assert len(clock.slept) == 2


def test_what_never_passes_is_rejected_at_once(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    with pytest.raises(LimitExceeded, match=r"^Rejected by out; will never pass") as caught:
        enter(cost=4)
    assert caught.value.retry_after is None
    assert clock.slept == []


def test_a_lease_lasts_for_the_block(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", **LEASES)

    def rejected() -> None:
        with pytest.raises(LimitExceeded):
            enter_again()

    def enter_again() -> None:
        with limiter.slot("stripe", max_wait=0):
            pass

    enter(rejected)
    enter_again()
    with pytest.raises(ZeroDivisionError):
        enter(lambda: 1 // 0)
    enter_again()
    assert clock.slept == []


def test_who_waits_for_a_lease_asks_each_second(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", **LEASES)
    holder = limiter.slot("stripe")
    holder.__enter__()
    clock.meanwhile = lambda: holder.__exit__() if len(clock.slept) == 3 else None
    enter(max_wait=10)
    assert clock.slept == [1, 1, 1]


def test_who_waits_for_a_lease_gives_up_in_time(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", **LEASES)
    with limiter.slot("stripe"), pytest.raises(LimitExceeded) as caught:
        enter(max_wait=2.5)
    assert clock.slept == [1, 1, 0.5]
    assert caught.value.retry_after == 57.5


def test_a_lease_and_a_window_together_are_waited_for_as_long_as_the_window_needs(
    enter: Enter, make_rule: MakeRule, clock: Clock
) -> None:
    make_rule("out", scope="stripe", **LEASES)
    make_rule("often", 1, scope="stripe", algorithm="gcra", limit={"window_seconds": 10})
    enter()
    enter()
    assert clock.slept == [10]


def test_who_stays_in_a_slot_holds_the_lease_that_ends_last(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("leases", scope="stripe", quota=2, algorithm="concurrency", limit={"window_seconds": 60})
    slot, other = limiter.slot("stripe"), limiter.slot("stripe", max_wait=0)
    slot.__enter__()
    clock.now_us += 4_000_000
    slot.__enter__()
    clock.now_us += 1_000_000
    slot.__exit__(None, None, None)
    clock.now_us += 56_000_000  # 57 after the second, 61 after the first
    with other, pytest.raises(LimitExceeded), other:
        pass
    slot.__exit__(None, None, None)
    with other, other:
        pass


def test_only_the_rules_of_exactly_this_scope_are_met(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("everything")
    make_rule("mine", scope="stripe")
    make_rule("other", scope="mail")
    make_rule("some-path", scope="stripe", path="/x/", path_kind="exact")
    make_rule("some-method", scope="stripe", methods=["POST"])
    with limiter.slot("stripe") as decision:
        assert [str(result.rule) for result in decision.results] == ["mine"]
    with limiter.slot("unheard-of") as decision:
        assert decision.results == ()
    with pytest.raises(ValueError, match="scope"):
        limiter.slot("")


def test_a_stated_partition_splits_and_is_shared_with_requests(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", 1, scope="stripe", partition_by=["ip"])
    for partition in ("a", "b", "ip:203.0.113.1"):
        with limiter.slot("stripe", max_wait=0, partition=partition):
            pass
        with pytest.raises(LimitExceeded):
            limiter.slot("stripe", max_wait=0, partition=partition).__enter__()
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.1")
    assert not limiter.check(request, scope="stripe").allowed


@pytest.mark.parametrize(("missing", "results"), [("skip", 0), ("ip", 0), ("deny", 1)])
def test_without_a_partition_rules_do_as_they_say(
    make_rule: MakeRule, clock: Clock, missing: str, results: int
) -> None:
    make_rule("out", scope="stripe", partition_by=["user"], missing_partition=missing)
    make_rule("whole", 10, scope="stripe")
    if missing == "deny":
        with pytest.raises(LimitExceeded, match="will never pass"):
            limiter.slot("stripe").__enter__()
    else:
        with limiter.slot("stripe", partition=None) as decision:
            assert [str(result.rule) for result in decision.results] == ["whole"]


def test_tiers_have_no_say(make_rule: MakeRule, clock: Clock) -> None:
    tier = Tier.objects.create(slug="guests", name="Guests", default_for="anonymous")
    rule = make_rule("out", 5, scope="stripe")
    RuleLimit.objects.create(rule=rule, tier=tier, quota=1, window_seconds=60)
    with limiter.slot("stripe") as decision:
        assert [(result.tier, result.limit.quota) for result in decision.results] == [(None, 5)]


def test_shadow_rules_neither_hold_nor_reject(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", mode="shadow", **QUEUE)
    make_rule("one", scope="stripe", mode="shadow", **LEASES)
    for _ in range(4):
        enter()
    assert clock.slept == []


async def enter_nowhere() -> None:
    async with limiter.slot("stripe"):
        raise AssertionError


def test_an_interrupted_wait_keeps_no_lease(make_rule: MakeRule, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule("out", scope="stripe", **QUEUE)
    make_rule("one", scope="stripe", **LEASES)
    with limiter.slot("stripe"):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(io, "sleep", failing(KeyboardInterrupt()))
        patched.setattr(io, "asleep", failing(asyncio.CancelledError()))
        with pytest.raises(KeyboardInterrupt), limiter.slot("stripe"):
            raise AssertionError
        with pytest.raises(asyncio.CancelledError):
            async_to_sync(enter_nowhere)()
    clock.now_us += 10_000_000
    with limiter.slot("stripe", max_wait=0):
        pass


@pytest.mark.parametrize("policy", ["local", "open", "closed"])
def test_without_the_engine_slots_follow_the_failure_policy(
    enter: Enter, make_rule: MakeRule, clock: Clock, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    make_rule("out", scope="stripe", failure_policy=policy, **LEASES)
    monkeypatch.setattr(backend, "_engine", Broken())
    if policy != "closed":
        enter()
        enter()
        assert clock.slept == []
    else:
        clock.meanwhile = lambda: monkeypatch.undo() if len(clock.slept) == 2 else None
        with pytest.raises(LimitExceeded) as caught:
            enter(max_wait=0.5)
        assert caught.value.retry_after == 1


@override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "ENABLED": False})
def test_switched_off_nobody_waits(enter: Enter, make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", scope="stripe", **LEASES)
    with limiter.slot("stripe"):
        enter(max_wait=0)


def test_the_error_survives_pickling(make_rule: MakeRule, clock: Clock) -> None:
    make_rule("out", 1, scope="stripe")
    with limiter.slot("stripe"), pytest.raises(LimitExceeded) as caught:
        limiter.slot("stripe", max_wait=0).__enter__()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.retry_after) == (str(caught.value), caught.value.retry_after)
