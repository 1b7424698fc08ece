"""A request has one outcome under each rule, however many calls decide it: a later one corrects earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.test import RequestFactory

from django_ratelimiter import backend
from django_ratelimiter.decision import Decision
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.models import AccessEntry, UsageBucket, UsageTotal
from django_ratelimiter.usage.collector.collect import collect
from tests.counting import sums_of
from tests.making import Clock, MakeRule, request_of

pytestmark = pytest.mark.django_db(transaction=True)

Check = Callable[..., Decision]


def rows(rule: str, granularity: str = "minute") -> list[tuple[int, int, int]]:
    """What a rule has allowed, rejected, and not rejected itself, by its buckets."""
    found = UsageBucket.objects.filter(rule_slug=rule, granularity=granularity).order_by("start")
    return [*found.values_list("allowed", "rejected", "rejected_by_other")]


def requests() -> list[tuple[int, int]]:
    found = UsageTotal.objects.filter(granularity="minute").order_by("start")
    return [*found.values_list("allowed", "rejected")]


@pytest.fixture
def rules(make_rule: MakeRule) -> None:
    make_rule("site", quota=30, partition_by=["ip"], failure_policy="closed")
    make_rule("trial", quota=99, partition_by=["ip"], mode="shadow", failure_policy="closed")
    make_rule("view", quota=1, partition_by=["ip"], scope="view", failure_policy="closed")


def get(user: Any = None) -> Any:
    return request_of(user, REMOTE_ADDR="192.0.2.7")


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("is_collected", [False, True])
def test_later_call_that_rejects_corrects_the_minute_of_the_earlier(
    check: Check, clock: Clock, is_collected: bool
) -> None:
    check(first := get())
    check(first, scope="view")
    check(request := get())
    clock.sleep(60)
    if is_collected:
        collect()
        assert rows("site") == [(2, 0, 0)]
    assert not check(request, scope="view").allowed
    clock.sleep(60)
    for _ in range(2):
        collect()
        assert rows("site") == rows("trial") == [(1, 0, 1)]
        assert rows("view") == [(1, 0, 0), (0, 1, 0)]
        assert requests() == [(1, 1)]
    for granularity in ("hour", "day"):
        assert rows("site", granularity) == [(1, 0, 1)]


@pytest.mark.usefixtures("rules")
def test_rule_shows_no_more_allowed_than_its_quota(check: Check, clock: Clock) -> None:
    for _ in range(403):
        check(request := get())
        check(request, scope="view")
    clock.sleep(60)
    collect()
    assert rows("site") == [(1, 0, 402)]


def test_body_rule_that_rejects_corrects_the_others(make_rule: MakeRule, check: Check, clock: Clock) -> None:
    make_rule("site", quota=30, partition_by=["ip"])
    make_rule("logins", quota=1, partition_by=["field:username"])
    for _ in range(3):
        check(RequestFactory().post("/", {"username": "ann"}, REMOTE_ADDR="192.0.2.7"))
    clock.sleep(60)
    collect()
    assert (rows("site"), rows("logins")) == ([(1, 0, 2)], [(1, 2, 0)])


def test_access_entry_that_denies_a_later_call_corrects_the_earlier(
    make_rule: MakeRule, check: Check, clock: Clock
) -> None:
    make_rule("site", quota=30, partition_by=["ip"], cost=4)
    make_rule("view", quota=30, partition_by=["user"], scope="view")
    user = get_user_model().objects.create_user("ann")
    AccessEntry.objects.create(action="deny", kind="user", value=str(user.pk))
    check(request := get(AnonymousUser()))
    request.user = user  # who has authenticated meanwhile
    assert check(request, scope="view").access
    clock.sleep(60)
    collect()
    assert (rows("site"), rows("view")) == ([(0, 0, 1)], [])
    assert UsageBucket.objects.get(granularity="minute").units == 0
    assert requests() == [(0, 1)]


def counted() -> dict[str, tuple[int, ...]]:
    """What the engine on Redis has counted: allowed, rejected, and rejected by another, by rule."""
    return sums_of(backend.get_engine(), "allowed", "rejected", "rejected_by_other")


def test_units_in_hand_are_corrected_too(make_rule: MakeRule, check: Check) -> None:
    make_rule("site", quota=3_000, partition_by=["ip"], sync_interval_ms=60_000)
    make_rule("view", quota=4, partition_by=["ip"], scope="view")
    decided_here = 0
    for _ in range(9):
        decided_here += check(request := get()).answer.is_local  # type: ignore[union-attr]
        check(request, scope="view")
    assert decided_here > 0
    assert counted() == {"site": (4, 0, 5), "view": (4, 5, 0)}


@contextmanager
def outage(cause: Exception | None = None) -> Iterator[None]:
    """Return no reply to any call. cause: of the outage, although the engine runs each call; `None` = it runs none."""
    engine: Any = backend.get_engine()
    run = engine.engine.check

    def lose(*given: Any, **options: Any) -> Any:
        if cause is not None:
            run(*given, **options)
        raise EngineUnavailable("out of reach") from cause

    with pytest.MonkeyPatch.context() as patch:
        for each in (engine, backend.get_async_engine()):
            patch.setattr(each, "check", lose)
        yield


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("is_lost", [False, True])
def test_call_without_reply_takes_nothing_back_twice(check: Check, is_lost: bool) -> None:
    check(first := get())
    check(first, scope="view")
    check(request := get())
    with outage(TimeoutError() if is_lost else None):
        assert check(request, scope="view").unavailable
    found = counted()
    # If it is not known what Redis has counted, the request is counted once more; never less than once.
    assert found["site"] == ((1, 0, 2) if is_lost else (1, 0, 1))
    assert found["view"] == ((1, 2, 0) if is_lost else (1, 1, 0))
