"""The fields and texts of decisions that nobody has taken apart: the same as of those that somebody has."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_ratelimiter.decision import Decision
from django_ratelimiter.engine.base import Version
from django_ratelimiter.engine.call import Answer, Call
from django_ratelimiter.headers import fields, rejection_response, response_fields, syntax, words_of
from django_ratelimiter.headers.fields import write_fields
from django_ratelimiter.headers.syntax import LARGEST_INTEGER
from django_ratelimiter.limiter.templates import RuleTemplates
from django_ratelimiter.rules.ruleset import rule_from
from django_ratelimiter.rules.tiers import Entitlement

from ..rules.build import limit_data, rule_data

AT_US = 1_700_000_000_123_456
LIMITS: list[dict[str, Any]] = [
    {"algorithm": "sliding_window_counter", "quota": 100},
    {"algorithm": "fixed_window", "quota": 7, "window_seconds": "3600.000000"},
    {"algorithm": "token_bucket", "quota": 5, "burst": 20},
    {"algorithm": "token_bucket", "quota": 9, "refill": "interval"},
    {"algorithm": "gcra", "quota": 3_600, "window_seconds": "0.500000"},
    {"algorithm": "sliding_window_log", "quota": 10, "soft_quota": 5},
    {"algorithm": "concurrency", "quota": 4},
]


def call_of(rules: list[tuple[int, str]]) -> RuleTemplates:
    """The templates of rules of one limit each. rules: which limit, and the mode."""
    return RuleTemplates(
        [
            rule_from(
                rule_data(
                    slug=f"rule-{place}",
                    mode=mode,
                    message=f"Message {place}." if place % 2 else "",
                    limits=[limit_data(**({"window_seconds": "60.000000"} | LIMITS[number]))],
                )
            )
            for place, (number, mode) in enumerate(rules)
        ],
        Entitlement(None),
    )


def decided(call: RuleTemplates, numbers: list[tuple[int, int, int]]) -> Decision:
    """A decision of the engine's numbers: for each limit what remains, the wait and the time until its reset."""
    charges = call.fill(["x" * 22] * len(call.sources))
    reply = [AT_US, *[number for each in numbers for number in (*each, 0)]]
    assert isinstance(charges, Call)
    return Decision.of(Answer(charges, reply), Version(3))


#: No engine tells that more remains than a limit's capacity, and these are small.
STATES = st.tuples(
    st.integers(0, LARGEST_INTEGER),
    st.sampled_from([0, 0, -1, 1, 999_999, 1_000_000, 90_000_001]),
    st.integers(0, 10**10),
)
CALLS = st.lists(
    st.tuples(st.integers(0, len(LIMITS) - 1), st.sampled_from(["enforce", "enforce", "shadow"]), STATES),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("longest", [syntax.MAX_LENGTH, 130])
@given(given_call=CALLS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_they_tell_the_same_whether_somebody_has_looked_or_not(
    given_call: list[tuple[int, str, Any]], longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syntax, "MAX_LENGTH", longest)
    numbers = [state for _, _, state in given_call]
    call = call_of([(number, mode) for number, mode, _ in given_call])
    looked_at, untouched = decided(call, numbers), decided(call, numbers)
    assert looked_at.results
    assert (looked_at.answer, untouched.answer is None) == (None, False)
    assert (
        untouched.allowed
        is looked_at.allowed
        is all(result.verdict.allowed for result in looked_at.results if result.mode == "enforce" and result.verdict)
    )
    assert response_fields(untouched) == response_fields(looked_at)
    assert untouched.retry_after == looked_at.retry_after
    request = RequestFactory().get("/", headers={"Accept": "application/json"})
    if not untouched.allowed:
        assert words_of(untouched) == words_of(looked_at)
        told, again = rejection_response(request, untouched), rejection_response(request, looked_at)
        assert (told.status_code, told.headers, told.content) == (again.status_code, again.headers, again.content)  # type: ignore[attr-defined]
    assert untouched == looked_at
    assert (untouched.binding, untouched.delay, untouched.answer) == (looked_at.binding, 0.0, None)


@pytest.mark.parametrize("number", [0, 2, 3])  # of three algorithms
@pytest.mark.parametrize("is_rejected", [False, True])
def test_many_limits_make_no_long_fields(number: int, is_rejected: bool) -> None:
    """Some proxies answer 502 to fields that do not fit into their buffers."""
    states = [(3, 0, 1_000_000), *[(100, 0, 0)] * 38, (1, 7_000_000 if is_rejected else 0, 9_000_000)]
    shown = response_fields(decided(call_of([(number, "enforce")] * 40), states))
    names = [
        [item.partition(";")[0] for item in shown[field].split(",")] for field in ("RateLimit-Policy", "RateLimit")
    ]
    assert names[0] == names[1]
    assert {names[0][0], names[0][-1]} == {'"rule-0"', '"rule-39"'}  # those nearest exhaustion
    assert 700 < len(shown["RateLimit-Policy"]) + len(shown["RateLimit"]) <= syntax.MAX_LENGTH


PLAIN = [(40, 0, 30_000_000), (3, 0, 5_000_000)]


@pytest.fixture
def decision() -> Decision:
    return decided(call_of([(0, "enforce"), (1, "shadow")]), PLAIN)


def test_parts_are_made_when_somebody_looks(decision: Decision) -> None:
    assert decision.answer is not None
    assert decision.binding is decision.results[0]
    assert decision.answer is None
    assert [result.mode for result in decision.results] == ["enforce", "shadow"]
    with pytest.raises(AttributeError, match="colour"):
        decision.colour  # noqa: B018


def test_it_is_copied_and_replaced_like_any_other(decision: Decision) -> None:
    delayed = replace(decision, delay=1.5)
    assert (delayed.delay, delayed.results, delayed.answer) == (1.5, decision.results, None)
    other = decided(call_of([(0, "enforce"), (1, "shadow")]), PLAIN)
    assert copy.copy(other) == decision
    assert repr(other).startswith("Decision(allowed=True, degraded=False, delay=0.0, binding=Result(")
    assert pickle.loads(pickle.dumps(other)).results[0].verdict.remaining == 40


def test_what_was_given_back_since_is_shown(decision: Decision) -> None:
    before = response_fields(decision)["RateLimit"]
    for result in decision.results:
        assert result.verdict
        result.verdict.mark_refunded()
    assert (before, response_fields(decision)["RateLimit"]) == ('"rule-0";r=40;t=30', '"rule-0";r=41;t=30')


@pytest.mark.parametrize("family", ["ratelimit", "x-ratelimit"])
def test_only_the_families_that_are_wished_for(decision: Decision, family: str) -> None:
    with override_settings(RATELIMITER={"HEADERS": [family]}):
        fields = response_fields(decision)
    assert decision.answer is not None
    assert {name.startswith("X-") for name in fields} == {family == "x-ratelimit"}


def test_nothing_is_made_if_no_family_is_wished_for(decision: Decision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fields, "response_fields")
    response = HttpResponse()
    with override_settings(RATELIMITER={"HEADERS": []}):
        write_fields(RequestFactory().get("/"), response, decision)
    assert set(response.headers) == {"Content-Type"}
    assert decision.answer is not None
