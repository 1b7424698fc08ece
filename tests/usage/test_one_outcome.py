"""A request has one outcome under each rule, however many calls decide it: a later one corrects earlier ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.test import Client, RequestFactory

from django_ratelimiter import backend
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine.base import UsageCount
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.models import AccessEntry, UsageBucket, UsageTotal
from django_ratelimiter.usage.collector.collect import collect
from tests.making import Clock, MakeRule

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
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    request.user = user
    return request


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
    make_rule("site", quota=30, partition_by=["ip"])
    make_rule("view", quota=30, partition_by=["user"], scope="view")
    user = get_user_model().objects.create_user("ann")
    AccessEntry.objects.create(action="deny", kind="user", value=str(user.pk))
    check(request := get(AnonymousUser()))
    request.user = user  # who has authenticated meanwhile
    assert check(request, scope="view").access
    clock.sleep(60)
    collect()
    assert (rows("site"), rows("view")) == ([(0, 0, 1)], [])
    assert requests() == [(0, 1)]


def counted() -> dict[str, tuple[int, int, int]]:
    """What the engine on Redis has counted: allowed, rejected, and rejected by another, by rule."""
    engine: Any = backend.get_engine()
    engine.flush()
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for batch in engine.take_usage(now_us=10**16):
        for count in engine.read_usage(batch):
            counts = count.allowed, count.rejected, count.rejected_by_other
            totals[count.label] = [sum(both) for both in zip(totals[count.label], counts, strict=True)]
    return {label.removesuffix("|"): tuple(counts) for label, counts in totals.items()}  # type: ignore[misc]


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


def test_calls_without_the_engine_are_corrected_in_this_process(make_rule: MakeRule, check: Check) -> None:
    make_rule("open", quota=1, partition_by=["ip"], failure_policy="open")
    make_rule("local", quota=9, partition_by=["ip"], failure_policy="local")
    make_rule("view", quota=9, partition_by=["ip"], scope="view", failure_policy="closed")
    with outage():
        assert check(request := get()).allowed
        assert not check(request, scope="view").allowed
    assert counted() == {"open": (0, 0, 1), "local": (0, 0, 1), "view": (0, 1, 0)}


@pytest.mark.urls("tests.entry_points.drf_views")
@pytest.mark.usefixtures("people")
def test_second_stage_that_rejects_corrects_the_first(client: Client, make_rule: MakeRule) -> None:
    from tests.entry_points.drf_views import gets, rates

    make_rule("per-ip", quota=30, partition_by=["ip"])
    make_rule("per-user", quota=2, partition_by=["user"])
    with rates:
        assert gets(client, "/user/", 4, X_Name="ann") == [200, 200, 429, 429]
    engine: Any = backend.get_engine()
    [batch] = engine.take_usage(now_us=10**16)
    found = {count.label: count for count in engine.read_usage(batch)}
    minute = found["per-ip|"].minute
    assert found["per-ip|"] == UsageCount(minute, "per-ip|", allowed=2, rejected_by_other=2)
    assert found["per-user|"] == UsageCount(minute, "per-user|", allowed=2, rejected=2)
