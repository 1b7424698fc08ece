"""Totals and top callers: each request once, whatever rules matched it, and in however many calls it was decided."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client, RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter import backend
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.base import UsageCount
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.usage import counts_of, outcome_of, requests_of
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.models import TopCaller, UsageBucket, UsageTotal
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.reports.totals import Figures, last

from ..entry_points.drf_views import gets, rates
from ..making import Clock, MakeRule

FIRST = 29_000_000
LIMIT = Limit(2, 366 * 86_400, "fixed_window")


def stored() -> list[Figures]:
    rows = UsageTotal.objects.order_by("granularity").values_list(
        "allowed", "rejected", "shadow_rejected", "soft_exceeded", "degraded"
    )
    return [Figures(*row) for row in rows]


@pytest.mark.django_db(transaction=True)
def test_a_request_of_several_rules_and_calls_counts_once(
    check: Callable[..., Decision], make_rule: MakeRule, clock: Clock
) -> None:
    """Whether the first call rejects it or a later one; those of one rule are counted apart, as before."""
    make_rule("site", quota=9, partition_by=["ip"])
    make_rule("pages", quota=4, partition_by=["ip"])
    make_rule("view", quota=2, partition_by=["ip"], scope="view")
    make_rule("later", quota=1, partition_by=["ip"], scope="view", mode="shadow")
    for _ in range(5):
        request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
        if check(request).allowed:
            check(request, scope="view")
    clock.sleep(60)
    for _ in range(2):
        collect()
        # 1 allowed, 1 that a rule in shadow would reject, 3 rejected: the third to fifth by "view"; a rejection is free
        assert stored() == [Figures(1, 3, 1)] * 3
    assert UsageBucket.objects.filter(granularity="day", rule_slug="site").get().allowed == 5
    check(request := RequestFactory().get("/", REMOTE_ADDR="192.0.2.8"))
    clock.sleep(60)
    check(request, scope="view")
    clock.sleep(60)
    collect()
    assert UsageTotal.objects.filter(granularity="minute").count() == 3  # the last has only a second call, and is whole


@pytest.mark.django_db(transaction=True)
def test_without_the_engine_too(
    make_rule: MakeRule, check: Callable[..., Decision], clock: Clock, monkeypatch: Any
) -> None:
    make_rule("site", quota=9, partition_by=["ip"], failure_policy="open")
    make_rule("view", quota=9, partition_by=["ip"], scope="view", failure_policy="open")
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    check(request)

    def gone(*_given: Any, **_options: Any) -> Any:
        raise EngineUnavailable("out of reach")

    monkeypatch.setattr(backend.get_engine(), "check", gone)
    check(request, scope="view")
    fields = {field: calls for _minute, field, calls in backend.usage_buffer.lease().entries}  # type: ignore[union-attr]
    assert requests_of(FIRST, fields) == UsageCount(FIRST, "", 0, 0, 0, 0, 1)
    assert counts_of(FIRST, fields) == [UsageCount(FIRST, "view|", 1, 0, 0, 0, 1)]


def template(*made: tuple[str, bool]) -> CallTemplate:
    charges = [
        ChargeTemplate(f"{name}:", "", Charge("", LIMIT, usage=f"{name}|", gating=gating)) for name, gating in made
    ]
    return CallTemplate(charges)


@pytest.mark.parametrize("now_us", [None, 1_740_000_000_000_000])
def test_both_engines_count_requests_and_undo_nothing_twice(engine: Any, now_us: int | None) -> None:
    first, second = template(("a", True), ("b", True)), template(("c", True))
    for _ in range(3):
        verdicts = engine.check(Call(first, ("x" * 22,) * 2), now_us=now_us)
        if all(verdict.allowed for verdict in verdicts):
            engine.check(Call(second, ("y" * 22,)).continuing("a"), now_us=now_us)
    at_us = verdicts[0].at_us
    [batch] = engine.take_usage(now_us=at_us + 120_000_000)
    assert engine.read_requests(batch)[2:] == (2, 1, 0, 0, 0)
    assert {count.label: count[2:4] for count in engine.read_usage(batch)} == {
        "a|": (2, 1),
        "b|": (2, 1),
        "c|": (2, 0),
    }


CALLS = st.lists(
    st.tuples(st.lists(st.sampled_from("asd"), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=4
)


@given(requests=st.lists(CALLS, max_size=5))
def test_whatever_calls_a_request_takes(requests: list[list[tuple[list[str], bool]]]) -> None:
    """The sum of the fields of its calls is one request, with the worst outcome of all of them."""
    fields: dict[str, int] = {}
    worst = {"a": 0, "w": 0, "d": 0}
    for calls in requests:
        so_far = ""
        for letters, shadow in calls:
            labels = [f"{'~' if shadow else ''}rule-{place}|" for place in range(len(letters))]
            lines = [*([f"~~{so_far}"] if so_far else []), *labels]
            field = "\n".join((*lines, ("a" if so_far else "") + "".join(letters)))
            fields[field] = fields.get(field, 0) + 1
            so_far = outcome_of(field)
        worst[so_far.replace("s", "a")] += 1
    found = requests_of(FIRST, fields)
    assert (found.allowed, found.shadow_rejected, found.rejected) == (worst["a"], worst["w"], worst["d"])
    assert found.soft_exceeded >= 0


@pytest.mark.django_db
def test_a_report_on_all_rules_counts_a_request_once() -> None:
    span = last(timedelta(hours=1))
    for minutes, requests in enumerate((30, 5)):
        at = {"start": span.start + timedelta(minutes=minutes)}
        UsageBucket.objects.create(rule_slug="rule-0", allowed=requests, rejected=3, **at)
        UsageBucket.objects.create(rule_slug="rule-1", allowed=requests, rejected=3, **at)
        total = UsageTotal.objects.create(allowed=requests, rejected=4, **at)
    report = Report(span)
    assert (report.together, report.counts_once) == (Figures(35, 8), True)
    assert [each.figures for each in report.points[:2]] == [Figures(30, 4), Figures(5, 4)]
    assert Report(span, "rule-0").together == Figures(35, 6)
    for without in (lambda: UsageTotal.objects.filter(pk=total.pk).update(allowed=2, rejected=0), total.delete):
        without()  # of a part of the minute, and of all of it: else the total would be less than its rows
        report = Report(span)
        assert (report.together, report.counts_once) == (Figures(70, 12), False)
        assert [each.figures for each in report.points[:2]] == [Figures(60, 6), Figures(10, 6)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.entry_points.drf_views")
@pytest.mark.usefixtures("people")
def test_a_request_of_the_rest_framework_is_decided_before_and_after_its_user_is_known(
    client: Client, make_rule: MakeRule
) -> None:
    make_rule("per-ip", quota=5, partition_by=["ip"])
    make_rule("per-user", quota=2, partition_by=["user"])
    with rates:
        assert gets(client, "/user/", 4, X_Name="ann") == [200, 200, 429, 429]
    engine: Any = backend.get_engine()
    [batch] = engine.take_usage(now_us=10**16)
    assert engine.read_requests(batch)[2:] == (2, 2, 0, 0, 0)
    [hour] = {hour for hour, _label in engine.partitions.hours()}
    by_user, by_address = engine.partitions.top_partitions([(hour, "*user"), (hour, "*ip")], 5)
    assert ([*by_user.values()], [*by_address.values()]) == ([(2, 2)], [(4, 0)])


def stored_callers() -> dict[tuple[str, str, str], tuple[int, int]]:
    rows = TopCaller.objects.values_list("identity", "granularity", "partition", "allowed", "rejected")
    return {tuple(key): (allowed, rejected) for *key, allowed, rejected in rows}  # type: ignore[misc]


@pytest.mark.django_db(transaction=True)
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
        assert stored_callers() == {
            (identity, granularity, who): (2, 1) if identity == "user" else (3, 0)
            for identity, who in (("user", ada), ("ip", address))
            for granularity in ("hour", "day")
        }
