"""The response fields, from decisions made by hand."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.decision import Decision, Result, decide
from django_ratelimiter.engine.base import Charge, Verdict, Version
from django_ratelimiter.headers import rejection_response, response_fields
from django_ratelimiter.headers.fields import write_fields
from django_ratelimiter.rules.ruleset import rule_from

from ..rules.build import limit_data, rule_data

AT_US = 1_700_000_000_000_000


def limit(window: str = "60.000000", quota: int = 100, **fields: Any) -> dict[str, Any]:
    return limit_data(window_seconds=window, quota=quota, **fields)


def results(*answers: tuple[bool, int, float | None, float] | None, limits: Any = None, **fields: Any) -> list[Result]:
    """One result per limit of a rule: (allowed, remaining, retry_after, reset_after); None = not counted."""
    rule = rule_from(rule_data(**{"slug": "api", "limits": limits or [limit()], **fields}))
    return [
        Result(rule, None, one.limit, answer and verdict(one.limit, *answer), rule.mode)
        for one, answer in zip(rule.limits[None], answers, strict=True)
    ]


def verdict(one: Any, allowed: bool, remaining: int, retry_after: float | None, reset_after: float) -> Verdict:
    return Verdict(allowed, remaining, retry_after, reset_after, 0.0, False, AT_US, Charge("key", one))


def decision(*several: list[Result], degraded: bool = False) -> Decision:
    return decide([result for some in several for result in some], Version(1), degraded=degraded)


ALLOWED = (True, 99, 0.0, 12.5)
DENIED = (False, 0, 7.2, 30.0)
NEVER = (False, 3, None, 30.0)


def test_an_allowed_response_tells_what_is_left() -> None:
    assert response_fields(decision(results(ALLOWED))) == {
        "RateLimit-Policy": '"api";q=100;w=60',
        "RateLimit": '"api";r=99;t=13',
        "X-RateLimit-Limit": "100",
        "X-RateLimit-Remaining": "99",
        "X-RateLimit-Reset": "1700000013",
    }


def test_nothing_decided_says_nothing() -> None:
    assert response_fields(decision()) == {}


@pytest.mark.parametrize(
    ("reset_us", "asked_us", "told"),
    [
        (250_000, AT_US + 750_000, "1700000001"),
        (250_000, AT_US + 750_001, "1700000002"),
        (4_217_987_068, AT_US - 4_217_987_068, "1700000000"),  # as seconds, times a million, it is more than that
    ],
)
def test_reset_is_rounded_up_from_the_engines_microseconds(reset_us: int, asked_us: int, told: str) -> None:
    one = results((True, 99, 0.0, reset_us / 1_000_000))
    assert one[0].verdict is not None
    one[0].verdict.at_us = asked_us
    assert response_fields(decision(one))["X-RateLimit-Reset"] == told


def test_all_policies_are_shown_and_the_binding_one_in_the_legacy_fields() -> None:
    fields = response_fields(
        decision(
            results(DENIED, ALLOWED, limits=[limit("1.000000", 10), limit("86400.000000", 1000)]),
            results((True, 4, 0.0, 9.0), slug="login"),
        )
    )
    assert fields["RateLimit-Policy"] == '"api";q=10;w=1,"api-86400";q=1000;w=86400,"login";q=100;w=60'
    assert fields["RateLimit"] == '"api";r=0;t=8,"api-86400";r=99,"login";r=4'
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Reset"]) == ("10", "1700000030")
    assert fields["Retry-After"] == "8"  # as the draft says: not earlier than any t of what rejects


@pytest.mark.parametrize(
    ("window", "policy"),
    [
        ("0.500000", '"api-0.5";q=100'),
        ("1.500000", '"api-1.5";q=100'),
        ("1.000000", '"api-1";q=100;w=1'),
        ("3600.000000", '"api-3600";q=100;w=3600'),
    ],
)
def test_a_window_is_told_in_whole_seconds_or_not_at_all(window: str, policy: str) -> None:
    several = results(ALLOWED, ALLOWED, limits=[limit("7200.000000"), limit(window)])
    assert response_fields(decision(several))["RateLimit-Policy"].split(",")[1] == policy


MONTH: dict[str, Any] = {"window_seconds": None, "calendar": "month"}


def test_a_calendar_has_no_length() -> None:
    alone = response_fields(decision(results(ALLOWED, limits=[limit_data(**MONTH)])))
    assert alone["RateLimit-Policy"] == '"api";q=100'
    limits = [limit(), limit_data(**MONTH, quota=5000)]
    fields = response_fields(decision(results(ALLOWED, DENIED, limits=limits)))
    assert fields["RateLimit-Policy"] == '"api";q=100;w=60,"api-month";q=5000'
    assert fields["RateLimit"] == '"api";r=99,"api-month";r=0;t=8'


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ({}, {"anchor": "first_request"}, "api-60-fixed_window-first_request"),
        (
            {"algorithm": "token_bucket"},
            {"algorithm": "token_bucket", "refill": "interval"},
            "api-60-token_bucket-interval",
        ),
        (
            {"algorithm": "sliding_window_slots"},
            {"algorithm": "sliding_window_slots", "slots": 6},
            "api-60-sliding_window_slots-6",
        ),
        (MONTH, MONTH | {"anchor_day": 31}, "api-month-fixed_window-31"),
        (MONTH, MONTH | {"timezone": "Europe/Berlin"}, "api-month-fixed_window-Europe/Berlin"),
        (MONTH, MONTH | {"calendar": "day"}, "api-day"),
    ],
)
def test_limits_that_differ_in_an_option_only(first: Any, second: Any, name: str) -> None:
    """The older ones have taken the shorter names."""
    limits = [limit("7200.000000"), limit_data(algorithm="gcra"), limit_data(**first), limit_data(**second)]
    if "calendar" in first:
        limits = [limit("7200.000000"), limit_data(**MONTH, anchor_day=9), limit_data(**first), limit_data(**second)]
    fields = response_fields(decision(results(*[ALLOWED] * len(limits), limits=limits)))
    assert re.findall('"([^"]*)"', fields["RateLimit-Policy"])[-1] == name


def test_what_never_passes_has_no_time() -> None:
    fields = response_fields(decision(results(NEVER)))
    assert fields["RateLimit"] == '"api";r=3'
    assert "Retry-After" not in fields


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([DENIED, (False, 0, 61.0, 90.0)], "61"),
        ([(False, 0, 61.0, 90.0), DENIED], "61"),
        ([DENIED, NEVER], None),
        ([NEVER, DENIED], None),
        ([(False, 0, 0.000001, 1.0)], "1"),
        ([(False, 0, 8.0, 9.0)], "8"),
        ([(False, 0, 8.000001, 9.0)], "9"),
    ],
)
def test_retry_after_waits_for_every_rejection(answers: list[Any], expected: str | None) -> None:
    several = [results(answer, slug=f"rule{index}") for index, answer in enumerate(answers)]
    assert response_fields(decision(*several)).get("Retry-After") == expected


def test_a_shadow_rule_is_not_shown() -> None:
    fields = response_fields(decision(results(NEVER, slug="trial", mode="shadow"), results(ALLOWED)))
    assert "trial" not in str(fields)
    assert "Retry-After" not in fields
    assert response_fields(decision(results(DENIED, mode="shadow"))) == {}
    late = results((False, 0, 500.0, 500.0), slug="trial", mode="shadow")
    assert response_fields(decision(results(DENIED), late))["Retry-After"] == "8"


def test_a_degraded_decision_invents_nothing() -> None:
    assert response_fields(decision(results(ALLOWED), degraded=True)) == {}
    told = {"Retry-After": "8", "X-RateLimit-Reference": "api#key"}
    assert response_fields(decision(results(DENIED), degraded=True)) == told
    assert response_fields(decision(results(None, failure_policy="open"), degraded=True)) == {}


@pytest.mark.parametrize(
    ("families", "names"),
    [
        (["ratelimit"], {"RateLimit", "RateLimit-Policy", "Retry-After"}),
        (
            ["x-ratelimit"],
            {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Reference", "Retry-After"},
        ),
        ([], {"Retry-After"}),
    ],
)
def test_families_can_be_switched_off(families: list[str], names: set[str]) -> None:
    with override_settings(RATELIMITER={"HEADERS": families}):
        assert set(response_fields(decision(results(DENIED)))) == names


MEMBER = re.compile(
    r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"((?:;[a-z]+=(?:[0-9]{1,15}|"[a-z-]+"))+)(?:,|$)'  # of RFC 9651
)


@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=20),
            st.integers(1, 2**40),
            st.sampled_from(["0.500000", "1.000000", "60.000000", "90.250000", "86400.000000"]),
            st.integers(0, 2**53),
            st.none() | st.floats(0.001, 10**9),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_limits_make_well_formed_fields(limits: list[tuple[str, int, str, int, float | None]]) -> None:
    found = [
        results((wait is not None, remaining, wait, 1.0), slug=slug, limits=[limit(window, quota)])
        for slug, quota, window, remaining, wait in limits
    ]
    fields = response_fields(decision(*found))
    for name, needed in (("RateLimit-Policy", "q"), ("RateLimit", "r")):
        members = list(MEMBER.finditer(fields[name]))
        assert "".join(member[0] for member in members) == fields[name]
        assert len(members) == len(limits)
        for member in members:
            parameters = dict(pair.split("=") for pair in member[2][1:].split(";"))
            assert needed in parameters
            assert parameters.get("w") != "0"


def test_a_name_is_escaped() -> None:
    fields = response_fields(decision(results(ALLOWED, slug='a"b\\ü\n')))
    assert fields["RateLimit-Policy"] == r'"a\"b\\??";q=100;w=60'
    assert fields["RateLimit"] == r'"a\"b\\??";r=99;t=13'


def softly(slug: str = "api", **fields: Any) -> list[Result]:
    """A result of a request that was admitted beyond the soft quota."""
    found = results(ALLOWED, slug=slug, **fields)
    for result in found:
        assert result.verdict is not None
        result.verdict.soft_exceeded = True
    return found


def test_a_soft_quota_that_is_exceeded_is_named() -> None:
    both = decision(softly(), softly("daily"), results(ALLOWED, slug="other"))
    assert response_fields(both)["X-RateLimit-Soft-Exceeded"] == '"api","daily"'
    assert "X-RateLimit-Soft-Exceeded" not in response_fields(decision(softly(mode="shadow"), results(ALLOWED)))
    assert "X-RateLimit-Soft-Exceeded" not in response_fields(decision(softly(), degraded=True))
    with override_settings(RATELIMITER={"HEADERS": ["ratelimit"]}):
        assert "X-RateLimit-Soft-Exceeded" not in response_fields(decision(softly()))


def asked(**headers: str) -> HttpRequest:
    return RequestFactory().get("/", headers=headers)


EXPOSED = {"RATELIMITER": {"HEADERS": ["ratelimit", "expose"]}}


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ({}, "RateLimit-Policy, RateLimit"),
        ({"Access-Control-Expose-Headers": "ETag, ratelimit"}, "ETag, ratelimit, RateLimit-Policy"),
        ({"Access-Control-Expose-Headers": "*"}, "*, RateLimit-Policy, RateLimit"),
        ({"Access-Control-Expose-Headers": ","}, "RateLimit-Policy, RateLimit"),
    ],
)
def test_fields_are_exposed_beside_what_is(there: dict[str, str], then: str) -> None:
    response = HttpResponse(headers=there)
    with override_settings(**EXPOSED):
        write_fields(asked(Origin="https://example.org"), response, decision(results(ALLOWED)))
    assert response["Access-Control-Expose-Headers"] == then
    assert response["Vary"] == "Origin"


def test_all_fields_of_a_rejection_are_exposed() -> None:
    with override_settings(**EXPOSED):
        response = rejection_response(asked(Origin="https://example.org"), decision(results(DENIED)))
    assert response["Access-Control-Expose-Headers"] == "Retry-After, RateLimit-Policy, RateLimit"


def test_fields_are_exposed_to_other_origins_only_and_when_wished_only() -> None:
    for settings, headers in ((EXPOSED, {}), ({}, {"Origin": "https://example.org"})):
        response = HttpResponse()
        with override_settings(**settings):
            write_fields(asked(**headers), response, decision(results(ALLOWED)))
        assert "RateLimit" in response
        assert "Access-Control-Expose-Headers" not in response


def test_a_rejection_bears_its_fields_already() -> None:
    rejected = decision(results(DENIED))
    response = rejection_response(asked(), rejected)
    del response.headers["RateLimit"]
    write_fields(asked(), response, rejected)
    assert "RateLimit" not in response
    write_fields(asked(), response, decision(results(DENIED), results(DENIED, slug="later")))
    assert '"later"' in response["RateLimit"]


def test_other_responses_get_the_fields_and_a_rejection_is_not_cached() -> None:
    for status, cached in ((429, "no-store"), (503, "no-store"), (200, None)):
        response = HttpResponse(status=status)
        write_fields(asked(), response, decision(results(DENIED)))
        assert (response["Retry-After"], response.get("Cache-Control")) == ("8", cached)
        assert b"ratelimiter" not in pickle.dumps(response), "caches pickle a page that answers a rejection"


@pytest.mark.parametrize(
    ("theirs", "left_out"),
    [
        ({"X-RateLimit-Limit": "7"}, {"X-RateLimit-Remaining", "X-RateLimit-Reset"}),
        ({"X-RateLimit-Remaining": "3"}, {"X-RateLimit-Limit", "X-RateLimit-Reset"}),
        ({"RateLimit": '"theirs";r=3'}, {"RateLimit-Policy"}),
        ({"RateLimit-Policy": '"theirs";q=7'}, {"RateLimit"}),
        ({"Retry-After": "77"}, set()),
        ({"X-RateLimit-Reference": "theirs"}, set()),
        ({"X-RateLimit-Used": "4"}, set()),
    ],
)
def test_fields_of_the_project_stay_and_are_not_mixed_with_ours(theirs: dict[str, str], left_out: set[str]) -> None:
    """Such as those of an API behind this site, or of another limiter of one view."""
    rejected = decision(results(DENIED))
    response = HttpResponse(status=429, headers={name.lower(): value for name, value in theirs.items()})
    for _twice in range(2):
        write_fields(asked(), response, rejected)
    ours = {name: value for name, value in response_fields(rejected).items() if name not in left_out}
    assert {name.lower(): value for name, value in response.headers.items()} == {
        "content-type": response["Content-Type"],
        "cache-control": "no-store",
        **{name.lower(): value for name, value in (ours | theirs).items()},
    }


def test_a_cache_stores_the_fields_of_the_project_but_not_ours() -> None:
    response = HttpResponse(headers={"X-RateLimit-Limit": "7", "ETag": "a"})
    write_fields(asked(), response, decision(results(ALLOWED)))
    assert "RateLimit" in response
    stored = pickle.loads(pickle.dumps(response.headers))
    assert dict(stored) == {"X-RateLimit-Limit": "7", "ETag": "a", "Content-Type": response["Content-Type"]}
