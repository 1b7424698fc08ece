"""Totals and top callers: each request once, whatever rules matched it, and in however many calls it was decided."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
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
from django_ratelimiter.engine.base import Counted, UsageCount
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.usage import continued, counts_of, joined, line_of, requests_of
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.models import TopCaller, UsageBucket, UsageTotal
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.reports.totals import Figures, last

from ..entry_points.drf_views import gets, rates
from ..making import Clock, MakeRule, failing, request_of

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
    site = UsageBucket.objects.filter(granularity="day", rule_slug="site").get()
    assert (site.allowed, site.rejected, site.rejected_by_other) == (2, 0, 3)
    check(request := RequestFactory().get("/", REMOTE_ADDR="192.0.2.8"))
    clock.sleep(60)
    check(request, scope="view")
    clock.sleep(60)
    collect()
    assert (
        UsageTotal.objects.filter(granularity="minute").count() == 2
    )  # a request counts in the minute of its first call


@pytest.mark.django_db(transaction=True)
def test_without_the_engine_too(
    make_rule: MakeRule, check: Callable[..., Decision], clock: Clock, monkeypatch: Any
) -> None:
    make_rule("site", quota=9, partition_by=["ip"], failure_policy="open")
    make_rule("view", quota=9, partition_by=["ip"], scope="view", failure_policy="open")
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
    check(request)
    monkeypatch.setattr(backend.get_engine(), "check", failing(EngineUnavailable("out of reach")))
    check(request, scope="view")
    fields = {field: calls for _minute, field, calls in backend.usage_buffer.lease().entries}  # type: ignore[union-attr]
    assert [count[2:] for count in requests_of(FIRST, fields)] == [
        (0, 0, 0, 0, 1, 0, 0, 0)
    ]  # Redis has counted it already
    assert counts_of(FIRST, fields) == [UsageCount(FIRST, "view|", 1, 0, 0, 0, 1)]


def counted(answer: Any) -> tuple[Counted, ...]:
    """How a request was counted after this answer to its first call."""
    return continued((), answer, is_rejected=answer.is_rejected)


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
            engine.check(Call(second, ("y" * 22,)).continuing(counted(verdicts)), now_us=now_us)
    at_us = verdicts[0].at_us
    [batch] = engine.take_usage(now_us=at_us + 120_000_000)
    assert [count[2:] for count in engine.read_requests(batch)] == [(2, 1, 0, 0, 0, 0, 0, 0)]
    assert {count.label: count[2:4] for count in engine.read_usage(batch)} == {
        "a|": (2, 1),
        "b|": (2, 1),
        "c|": (2, 0),
    }


#: A call for a request: minutes since the one before, and the letter of each charge, and whether it may reject.
Made = tuple[int, list[tuple[str, bool]]]
CALLS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.tuples(st.sampled_from("asd"), st.booleans()), min_size=1, max_size=3)),
    min_size=1,
    max_size=4,
)


def counted_calls(number: int, calls: Sequence[Made]) -> Iterator[tuple[int, str, tuple[Counted, ...]]]:
    """Yield the minute and the field of each call of a request, up to one that rejects it, and what is counted then."""
    so_far: tuple[Counted, ...] = ()
    minute = FIRST
    for place, (minutes, charges) in enumerate(calls):
        minute += minutes
        is_rejected = any(letter == "d" and gating for letter, gating in charges)
        lines = [line_of(f"{number}-{place}-{rule}|", gating=gating) for rule, (_, gating) in enumerate(charges)]
        letters = ["o" if is_rejected and letter != "d" else letter for letter, _ in charges]
        field = joined(lines, "".join(letters), so_far, minute)
        so_far += tuple(Counted(minute, *each) for each in zip(lines, letters, strict=True))
        yield minute, field, so_far
        if is_rejected:
            return


def expected_of(so_far: tuple[Counted, ...]) -> Iterator[tuple[int | None, str, str]]:
    """Yield the outcome of a request under each rule, and its own."""
    is_rejected = any(letter == "d" and not line.startswith("~") for _, line, letter, _ in so_far)
    passed = "rejected_by_other" if is_rejected else "allowed"
    for minute, line, letter, _ in so_far:
        own = "shadow_rejected" if line.startswith("~") else "rejected"
        yield minute, line.removeprefix("~"), own if letter == "d" else passed
    in_shadow = any(letter == "d" for _, _, letter, _ in so_far)
    yield so_far[0].minute, "", "rejected" if is_rejected else "shadow_rejected" if in_shadow else "allowed"


@given(requests=st.lists(CALLS, max_size=5))
def test_a_request_has_one_outcome_for_each_rule_whatever_calls_it_takes(requests: list[list[Made]]) -> None:
    """The sum of the fields of its calls is that, in the minute in which each rule was decided."""
    batches: defaultdict[int, Counter[str]] = defaultdict(Counter)
    expected: Counter[tuple[int | None, str, str]] = Counter()
    for number, calls in enumerate(requests):
        made = [*counted_calls(number, calls)]
        for minute, field, _ in made:
            batches[minute][field] += 1
        expected.update(expected_of(made[-1][2]))
    found: Counter[tuple[int | None, str, str]] = Counter()
    for minute, fields in batches.items():
        for count in (*counts_of(minute, fields), *requests_of(minute, fields)):
            for outcome in ("allowed", "rejected", "rejected_by_other", "shadow_rejected"):
                found[count.minute, count.label, outcome] += getattr(count, outcome)
    assert {key: number for key, number in found.items() if number} == expected


@pytest.mark.django_db
def test_a_report_on_all_rules_counts_a_request_once() -> None:
    span = last(timedelta(hours=1))
    for minutes, requests in enumerate((30, 5)):
        at = {"start": span.start + timedelta(minutes=minutes)}
        UsageBucket.objects.create(rule_slug="rule-0", allowed=requests, rejected=3, **at)
        UsageBucket.objects.create(rule_slug="rule-1", allowed=requests, rejected=3, **at)
        total = UsageTotal.objects.create(allowed=requests, rejected=4, **at)
    report = Report(span)
    assert (report.together, report.counts_once) == (Figures(35, 8, units=35), True)
    assert [each.figures for each in report.points[:2]] == [Figures(30, 4, units=30), Figures(5, 4, units=5)]
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
    assert [count[2:] for count in engine.read_requests(batch)] == [(2, 2, 0, 0, 0, 0, 0, 0)]
    by_rule = {count.label: count[2:] for count in engine.read_usage(batch)}
    assert by_rule["per-ip|"] == (2, 0, 0, 0, 0, 2, 0, 0)
    assert by_rule["per-user|"] == (2, 2, 0, 0, 0, 0, 0, 0)
    [hour] = {hour for hour, _label in engine.partitions.hours()}
    by_user, by_address = engine.partitions.top_partitions([(hour, "*user"), (hour, "*ip")], 5)
    assert ([*by_user.values()], [*by_address.values()]) == ([(2, 2)], [(2, 2)])


def stored_callers() -> dict[tuple[str, str, str], tuple[int, int]]:
    rows = TopCaller.objects.values_list("identity", "granularity", "partition", "allowed", "rejected")
    return {tuple(key): (allowed, rejected) for *key, allowed, rejected in rows}  # type: ignore[misc]


@pytest.mark.django_db(transaction=True)
def test_each_request_counts_once_for_each_identity_of_its_caller(
    check: Callable[..., Decision], make_rule: MakeRule, clock: Clock
) -> None:
    """Also if a further call decides more rules for it; as rejected under each, whatever rule rejects it."""
    make_rule("site", quota=9, partition_by=["user"])
    make_rule("pages", quota=2, partition_by=["user"])
    make_rule("hosts", quota=9, partition_by=["ip"])
    make_rule("view", quota=9, partition_by=["user"], scope="view")
    make_rule("both", quota=9, partition_by=["user", "ip"])
    make_rule("all", quota=9, partition_by=[])
    user = get_user_model().objects.create_user("ada")
    for _ in range(3):
        check(request := request_of(user, REMOTE_ADDR="192.0.2.7"))
        check(request, scope="view")
    clock.sleep(60)
    for _ in range(2):
        collect()
        ada, address = digest(f"user:{user.pk}"), digest("ip:192.0.2.7")
        assert stored_callers() == {
            (identity, granularity, who): (2, 1)
            for identity, who in (("user", ada), ("ip", address))
            for granularity in ("hour", "day")
        }
