"""Exempt callers: no rule rejects them, nothing stays charged, and their requests are counted as such."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client, RequestFactory, override_settings
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter import backend, limiter
from django_ratelimiter.api.views import own_report
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.explain import Question, explain
from django_ratelimiter.inspection.explanation import headline_of, notes_of
from django_ratelimiter.models import AccessEntry, Tier
from tests.making import MakeRule
from tests.usage.test_one_outcome import Check, outage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

#: Which of its answers `exempts` gives, and the callers that it was asked about.
answer = "yes"
asked: list[str | None] = []


def exempts(caller: Any) -> Any:
    asked.append(caller.user_id)
    return {"yes": True, "text": "yes"}[answer]


async def exempts_later(caller: Any) -> Any:
    await asyncio.sleep(0)
    return exempts(caller)


def exempt_by(path: str, **others: Any) -> Any:
    return override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "EXEMPT": path, **others})


@pytest.fixture(autouse=True)
def ann() -> Iterator[User]:
    """A member of the staff, who is exempt. Nobody was asked about yet."""
    asked.clear()
    with exempt_by("user.is_staff"):
        yield User.objects.create_user("ann", is_staff=True)


@pytest.fixture(params=["memory", "redis"])
def any_engine(request: pytest.FixtureRequest) -> None:
    if request.param == "memory":
        request.getfixturevalue("clock")


def ask(user: Any = None) -> Any:
    request = RequestFactory().post("/", {"name": "x"}, REMOTE_ADDR="192.0.2.7")
    request.user = user or AnonymousUser()
    return request


def left(scope: str | None = None) -> dict[str, int]:
    """What is left under each rule for somebody else at the same address."""
    return {each.rule.slug: each.verdict.remaining for each in limiter.peek(ask(), scope=scope).results if each.verdict}


def counted() -> dict[str, tuple[int, ...]]:
    """Of rules: allowed, rejected, rejected by another, in shadow, units. Of requests: allowed, rejected, exempt."""
    engine: Any = backend.get_engine()
    getattr(engine, "flush", lambda: None)()
    found: dict[str, tuple[int, ...]] = {}
    for batch in engine.take_usage(now_us=5 * 10**15):
        rows = [(row.label, (*row[2:4], row.rejected_by_other, row[4], row.units)) for row in engine.read_usage(batch)]
        for label, row in [*rows, *[("", (*row[2:4], row.exempt)) for row in engine.read_requests(batch)]]:
            found[label] = tuple(map(sum, zip(found.get(label, (0,) * 5), row, strict=False)))
    return {label.removesuffix("|"): counts for label, counts in found.items()}


@pytest.mark.usefixtures("any_engine")
def test_setting_is_read_first_where_a_rule_reads_the_user(make_rule: MakeRule, check: Check, ann: User) -> None:
    make_rule("users", quota=5, partition_by=["user"], cost=5)
    make_rule("trial", quota=1, partition_by=["ip"], mode="shadow")
    made = [check(ask(ann)) for _ in range(3)]
    assert {(each.allowed, each.is_exempt, each.binding) for each in made} == {(True, True, None)}
    assert left() == {"trial": 1}
    assert counted() == {"users": (3, 0, 0, 0, 0), "trial": (3, 0, 0, 0, 0), "": (3, 0, 3)}


@pytest.mark.usefixtures("any_engine")
@pytest.mark.parametrize("by", ["ip", "field:name"])
def test_setting_is_read_after_a_rejection_where_none_does(
    make_rule: MakeRule, check: Check, ann: User, by: str
) -> None:
    make_rule("site", quota=2, partition_by=[by], cost=2)
    make_rule("pages", quota=9, partition_by=["ip"])
    make_rule("trial", quota=1, partition_by=["ip"], mode="shadow")
    assert [check(ask(ann)).is_exempt for _ in range(4)] == [False, True, True, True]
    assert not check(ask()).allowed
    assert left() == {"site": 0, "pages": 8, "trial": 0}
    assert counted() == {"site": (4, 1, 0, 0, 2), "pages": (4, 0, 1, 0, 1), "trial": (4, 0, 0, 1, 1), "": (4, 1, 3)}


@pytest.mark.usefixtures("any_engine")
@pytest.mark.parametrize("by", ["ip", "user"])
def test_earlier_calls_are_refunded_and_counted_as_exempt(
    make_rule: MakeRule, check: Check, ann: User, by: str
) -> None:
    make_rule("site", quota=30, partition_by=["ip"], cost=3)
    make_rule("trial", quota=1, partition_by=["ip"], mode="shadow")
    make_rule("lease", quota=9, partition_by=["ip"], algorithm="concurrency")
    make_rule("view", quota=1, partition_by=[by], scope="view")
    make_rule("later", quota=1, partition_by=["ip"], scope="later")
    check(ask(), cost=1)
    check(request := ask(ann), cost=1)
    decision = check(request, scope="view", cost=2)
    modes = {each.rule.slug: (each.mode, each.verdict) for each in decision.results}
    assert (decision.allowed, modes) == (True, dict.fromkeys(("lease", "site", "trial", "view"), ("exempt", None)))
    for _ in range(2):
        check(request, scope="later")
    assert left("later") == {"site": 29, "trial": 0, "lease": 8, "later": 1}
    twice = dict.fromkeys(("site", "trial", "lease"), (2, 0, 0, 0, 1))
    assert counted() == twice | dict.fromkeys(("view", "later"), (1, 0, 0, 0, 0)) | {"": (2, 0, 1)}


@pytest.mark.parametrize(("by", "charged"), [("ip", 1), ("user", 0)])
def test_view_of_the_rest_framework_has_two_stages(client: Client, make_rule: MakeRule, by: str, charged: int) -> None:
    make_rule("site", quota=30, partition_by=["ip"])
    make_rule("uploads", quota=1, partition_by=[by], scope="uploads")
    responses = [client.get("/throttled/scoped/", headers={"X-Name": "ann"}) for _ in range(3)]
    assert [(each.status_code, "RateLimit" in each) for each in responses[1:]] == [(200, False)] * 2
    assert counted() == dict.fromkeys(("site", "uploads"), (3, 0, 0, 0, charged)) | {"": (3, 0, 3 - charged)}


def test_allowed_request_reads_no_session(
    client: Client, make_rule: MakeRule, ann: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    make_rule("site", quota=2, partition_by=["ip"])
    client.force_login(ann)
    client.get("/plain/")
    with django_assert_num_queries(0):
        assert "Vary" not in client.get("/plain/")
    response = client.get("/plain/")
    assert (response.status_code, "RateLimit" in response, response["Vary"]) == (200, False, "Cookie")


def test_api_key_is_exempt_without_a_session(client: Client, make_rule: MakeRule) -> None:
    make_rule("site", quota=1, partition_by=["ip"])
    with exempt_by("api_key.is_staff", API_KEY_RESOLVER="tests.rules.test_plans.key_of"):
        responses = [client.get("/plain/", headers={"X-API-Key": key}) for key in ("ann", "ann", "bob", "")]
    assert [each.status_code for each in responses] == [200, 200, 429, 429]
    assert not any("Cookie" in each.get("Vary", "") for each in responses)


@pytest.mark.parametrize("path", ["exempts", "exempts_later"])
@pytest.mark.parametrize(("by", "wrong"), [("ip", "secret"), ("user", "text")])
def test_function_is_asked_once_in_a_while_and_exempts_nobody_while_it_fails(
    make_rule: MakeRule, check: Check, ann: Any, monkeypatch: Any, caplog: Any, now: Any, path: str, by: str, wrong: str
) -> None:
    make_rule("site", quota=1, partition_by=[by])
    with exempt_by(f"{__name__}.{path}"):
        assert [check(ask(ann)).is_exempt for _ in range(3)] == [by == "user", True, True]
        assert asked == [str(ann.pk)]
        monkeypatch.setattr(f"{__name__}.answer", wrong)
        now[0] += 5
        made = [check(ask(ann)) for _ in range(2)]
        assert [(each.allowed, each.degraded) for each in made] == [(by == "user", True), (False, True)]
        assert ("RATELIMITER['EXEMPT']" in caplog.text, "secret" in caplog.text) == (True, False)
        monkeypatch.setattr(f"{__name__}.answer", "yes")
        now[0] += 1
        assert check(ask(ann)).is_exempt


@pytest.mark.usefixtures("any_engine")
@pytest.mark.parametrize("kind", ["ip", "user"])
def test_request_that_an_access_entry_allows_is_exempt(make_rule: MakeRule, check: Check, kind: str, ann: User) -> None:
    make_rule("site", quota=4, partition_by=["ip"], cost=4)
    make_rule("logins", quota=1, partition_by=["field:name", "user"])
    AccessEntry.objects.create(action="allow", kind=kind, value="192.0.2.0/24" if kind == "ip" else str(ann.pk))
    Tier.objects.create(slug="pro", name="Pro", default_for="authenticated")
    for request in (ask(ann), ask(ann)):
        if kind == "ip":
            del request.user  # it is not needed
        assert check(request).is_exempt
    assert counted() == {"site": (2, 0, 0, 0, 0), "logins": (2, 0, 0, 0, 0), "": (2, 0, 2)}


@pytest.mark.parametrize("by", ["ip", "user"])
def test_caller_is_exempt_without_redis(make_rule: MakeRule, check: Check, ann: User, by: str) -> None:
    make_rule("site", quota=9, partition_by=["ip"])
    make_rule("view", quota=9, partition_by=[by], scope="view", failure_policy="closed")
    with exempt_by("user.is_staff", VERSION_CHECK_INTERVAL=0), outage():
        check(request := ask(ann))
        decision = check(request, scope="view")
    assert (decision.allowed, decision.degraded, all(each.passes for each in decision.results)) == (True, True, True)
    assert counted() == {"site": (1, 0, 0, 0, 0), "view": (1, 0, 0, 0, 0), "": (1, 0, 1)}


@pytest.mark.parametrize("block", [True, False])
def test_rate_in_code_limits_no_exempt_caller(make_rule: MakeRule, ann: User, block: bool) -> None:
    make_rule("site", quota=9, partition_by=["ip"])
    view = ratelimit(key="ip", rate="1/d", group="g", block=block)(lambda request: request.limited)
    assert [view(ask(ann)) for _ in range(3)] == [False] * 3
    assert counted() == dict.fromkeys(("site", "code:g.ip.1-86400s"), (3, 0, 0, 0, 1)) | {"": (3, 0, 2)}


@pytest.mark.parametrize("by", ["ip", "user"])
def test_explanation_says_who_is_exempt_and_by_what(client: Client, make_rule: MakeRule, by: str, ann: User) -> None:
    make_rule("site", quota=1, partition_by=[by])
    make_rule("search", partition_by=["query:q"])
    client.get("/plain/", REMOTE_ADDR="192.0.2.7")
    explained = explain(Question(path="/plain/", ip="192.0.2.7", user="ann"))
    assert (explained.bypass, headline_of(explained), explained.matched) == ("exempt caller", "Allowed.", ())
    assert notes_of(explained) == ["RATELIMITER['EXEMPT'] lets this caller pass all rules."]
    assert own_report(ask(ann))["limits"] == []
