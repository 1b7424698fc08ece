"""Rules by a field of the body: they are decided last, and a body that is not read is not one without the field."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.test.client import MULTIPART_CONTENT

from django_ratelimiter import limiter
from django_ratelimiter.decision import Decision
from django_ratelimiter.decorators import Ratelimited, ratelimit
from django_ratelimiter.headers import rejection_response
from django_ratelimiter.limiter.charges import InlineRule
from django_ratelimiter.rules import inline
from django_ratelimiter.testing import RulesInForce, override_rules

BY_IP = {"slug": "by-ip", "limits": ["2/minute"], "partition_by": ["ip"]}
BY_NAME = {"slug": "by-name", "limits": ["2/minute"], "partition_by": ["field:name"]}

Check = Callable[..., Decision]


def post(name: str = "ann", **environ: Any) -> HttpRequest:
    return RequestFactory().post("/", {"name": name}, content_type="application/json", **environ)


def calls_of(rules: RulesInForce, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of the engine adds the number of its charges."""
    calls, check = [], rules.engine.check

    def counted(charges: Any, **options: Any) -> Any:
        calls.append(len(charges))
        return check(charges, **options)

    monkeypatch.setattr(rules.engine, "check", counted)
    return calls


def test_a_body_is_not_read_if_a_rule_that_needs_none_rejects(check: Check) -> None:
    with override_rules(BY_NAME, BY_IP):
        for name in ("ann", "bob"):
            assert [result.rule.slug for result in check(post(name)).results] == ["by-ip", "by-name"]
        body = BytesIO(b'{"name": "ann"}')
        decision = check(post(**{"wsgi.input": body}))
    assert (decision.allowed, body.tell()) == (False, 0)
    assert [result.rule.slug for result in decision.results] == ["by-ip"]


def test_if_the_body_rejects_the_others_are_refunded(check: Check) -> None:
    with override_rules({**BY_IP, "limits": ["4/minute"]}, BY_NAME):
        assert [check(post()).allowed for _ in range(4)] == [True, True, False, False]
        decision = check(post("bob"))
    assert [result.verdict.remaining for result in decision.results if result.verdict] == [1, 1]


@pytest.mark.parametrize(
    ("rules", "request_of", "charges"),
    [
        ([BY_NAME], post, [1]),
        ([BY_IP, BY_NAME], post, [1, 1]),
        ([BY_IP, BY_NAME], lambda: RequestFactory().get("/"), [1]),
    ],
)
def test_two_calls_only_if_some_rules_need_a_body(
    monkeypatch: pytest.MonkeyPatch, rules: list[Any], request_of: Any, charges: list[int]
) -> None:
    with override_rules(*rules) as in_force:
        calls = calls_of(in_force, monkeypatch)
        limiter.check(request_of())
    assert calls == charges


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", MULTIPART_CONTENT])
def test_a_form_that_was_parsed_before_takes_one_call(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As CsrfViewMiddleware does. It is not parsed again, either."""
    data: Any = b"name=ann" if "urlencoded" in kind else {"name": "ann"}
    request = RequestFactory().post("/", data, content_type=kind)
    assert request.POST["name"] == "ann"
    monkeypatch.setattr("django_ratelimiter.identity.body.QueryDict", None)
    monkeypatch.setattr("django_ratelimiter.identity.body.MultiPartParser", None)
    with override_rules(BY_IP, BY_NAME) as in_force:
        calls = calls_of(in_force, monkeypatch)
        assert [result.rule.slug for result in limiter.check(request).results] == ["by-ip", "by-name"]
    assert calls == [2]


def test_a_rate_in_code_is_decided_before_the_body_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = InlineRule(inline.rule_of("code:a", 1, 60, "ip"), "ip:192.0.2.7")
    with override_rules(BY_NAME) as in_force:
        calls = calls_of(in_force, monkeypatch)
        assert [limiter.check(post(), extra=[rate]).allowed for _ in range(2)] == [True, False]
    assert calls == [1, 1, 1]


def test_the_longer_delay_of_both_is_waited_for(check: Check) -> None:
    queue = {"algorithm": "leaky_bucket", "quota": 1, "burst": 5, "max_delay_ms": 9_000}
    by_ip = {**BY_IP, "limits": [{**queue, "window_seconds": 2}]}
    by_name = {**BY_NAME, "limits": [{**queue, "window_seconds": 1}]}
    with override_rules(by_ip, by_name):
        assert [check(post()).delay for _ in range(2)] == [0.0, 2.0]


def test_a_peek_asks_all_in_one() -> None:
    with override_rules(BY_IP, BY_NAME):
        assert [result.rule.slug for result in limiter.peek(post()).results] == ["by-ip", "by-name"]


def padded(last: int, method: str = "POST") -> HttpRequest:
    """Return a request of one of several addresses, with a name that a view reads and the limiter does not."""
    body = b'{"name": "ann", "more": "%s"}' % (b"a" * 66_000)
    return RequestFactory().generic(method, "/", body, "application/json", REMOTE_ADDR=f"192.0.2.{last}")


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({"path": "/", "path_kind": "exact"}, [True, True, False, False]),
        ({"path": "/", "path_kind": "prefix", "missing_partition": "deny"}, [False] * 4),
        ({"path": "/", "path_kind": "exact", "missing_partition": "deny"}, [False] * 4),
        ({"path": "/", "path_kind": "exact", "missing_partition": "skip"}, [True] * 4),
        ({"path": "/", "path_kind": "prefix"}, [True] * 4),
        ({}, [True] * 4),
        ({"path": "/", "path_kind": "exact", "partition_by": ["field:name", "ip"]}, [True, True, False, False]),
    ],
)
def test_unreadable_bodies_share_a_counter_where_the_address_stands_in(
    check: Check, fields: dict[str, Any], passes: list[bool]
) -> None:
    with override_rules({**BY_NAME, "missing_partition": "ip", **fields}):
        assert [check(padded(last)).allowed for last in range(4)] == passes
        if fields.get("missing_partition") != "deny":
            assert check(post(REMOTE_ADDR="192.0.2.9")).allowed
            assert check(RequestFactory().post("/", REMOTE_ADDR="192.0.2.9")).allowed  # by its address


def test_unreadable_bodies_share_a_counter_of_a_rate_in_code() -> None:
    @ratelimit(key="field:name", rate="2/m", block=True)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with override_rules():
        assert [view(padded(last)).status_code for last in range(2)] == [200, 200]
        with pytest.raises(Ratelimited):
            view(padded(3))


@pytest.mark.parametrize(("message", "told"), [("", "could not be read"), ("Ask us.", "Ask us.")])
def test_a_caller_is_told_that_the_body_could_not_be_read(message: str, told: str) -> None:
    rule = {**BY_NAME, "missing_partition": "ip", "path": "/", "path_kind": "exact", "message": message}
    with override_rules(rule):
        for last in range(3):
            decision = limiter.check(request := padded(last))
        assert told in rejection_response(request, decision).content.decode()
        for _ in range(3):
            decision = limiter.check(request := post())
        assert "could not be read" not in rejection_response(request, decision).content.decode()
