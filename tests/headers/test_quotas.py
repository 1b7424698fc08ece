"""The quota, the window and the time that the fields show: what a client works out from them holds."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.decision import Result, decide
from django_ratelimiter.engine import Charge, Limit, MemoryEngine, Version
from django_ratelimiter.headers import response_fields
from django_ratelimiter.rules.records import LimitRecord
from django_ratelimiter.rules.ruleset import rule_from

from ..rules.build import rule_data
from .test_fields import ALLOWED, decision, limit, results

START_US = 1_700_000_000_000_000
BUCKETS = ("token_bucket", "gcra", "leaky_bucket")


class Asked:
    """One caller of one limit, at a time of its own, and the fields of its latest response."""

    def __init__(self, counted: Limit) -> None:
        self.counted, self.now_us, self.fields = counted, START_US, {}
        self._engine = MemoryEngine(lambda: self.now_us)

    def ask(self, cost: int = 1) -> bool:
        charge = Charge("key", self.counted, cost)
        [verdict] = self._engine.check([charge])
        rule = rule_from(rule_data(slug="api"))
        rule.limits[None] = (LimitRecord(self.counted),)  # type: ignore[index]
        answer = decide([Result(rule, None, self.counted, verdict, "enforce")], Version(1))
        self.fields = response_fields(answer)
        return answer.allowed

    def number(self, field: str, name: str) -> int | None:
        found = re.search(rf";{name}=([0-9]+)", self.fields[field])
        return int(found[1]) if found else None

    @property
    def state(self) -> str:
        return self.fields["RateLimit"]


@pytest.mark.parametrize(
    ("counted", "policy"),
    [
        (Limit(3600, 3600, "gcra"), '"api";q=3600;w=3600'),
        (Limit(100, 60, "token_bucket", burst=5), '"api";q=5;w=3'),
        (Limit(7, 60, "token_bucket", burst=10), '"api";q=10;w=86'),  # 85.7 seconds
        (Limit(1000, 1, "gcra", burst=500), '"api";q=500'),  # half a second
        (Limit(5, 1, "leaky_bucket", burst=50), '"api";q=50;w=10'),
        (Limit(5, 1, "token_bucket", burst=12, refill="interval"), '"api";q=12;w=3'),
        (Limit(5, 60, "token_bucket", refill="interval"), '"api";q=5;w=60'),
        (Limit(20, 300, "concurrency"), '"api";q=20;qu="concurrent-requests"'),
        (Limit(100, 60), '"api";q=100;w=60'),
    ],
)
def test_what_the_policy_shows(counted: Limit, policy: str) -> None:
    caller = Asked(counted)
    caller.ask()
    assert caller.fields["RateLimit-Policy"] == policy
    assert caller.fields["X-RateLimit-Limit"] == str(counted.capacity)


@pytest.mark.parametrize(
    ("counted", "cost", "state"),
    [
        (Limit(3600, 3600, "token_bucket"), 1, "r=3599;t=3599"),  # not t=1: that would be 3,599 in a second
        (Limit(3600, 3600, "token_bucket"), 3599, "r=1;t=1"),
        (Limit(3600, 3600, "token_bucket"), 3600, "r=0;t=1"),
        (Limit(1, 60, "token_bucket", burst=3), 3, "r=0;t=60"),
        (Limit(5, 60, "token_bucket", refill="interval"), 5, "r=0;t=40"),  # 20 seconds into a window
        (Limit(5, 60, "token_bucket", burst=50, refill="interval"), 1, "r=49;t=580"),
        (Limit(20, 300, "concurrency"), 1, "r=19"),  # a lease ends with its response, nobody knows when
        (Limit(100, 60, "fixed_window"), 1, "r=99;t=40"),
        (Limit(100, 60), 0, "r=100"),  # all is there; a client that divides by t must not find 0
    ],
)
def test_the_time_of_an_allowed_response(counted: Limit, cost: int, state: str) -> None:
    caller = Asked(counted)
    assert caller.ask(cost)
    assert caller.state == f'"api";{state}'


@given(
    st.builds(
        Limit,
        quota=st.integers(1, 1_000),
        window=st.integers(1, 5_000),
        algorithm=st.sampled_from(BUCKETS),
        burst=st.none() | st.integers(1, 1_000),
    )
    | st.builds(
        Limit,
        quota=st.integers(1, 50),
        window=st.integers(1, 5_000),
        algorithm=st.just("token_bucket"),
        burst=st.none() | st.integers(1, 1_000),
        refill=st.just("interval"),
    ),
    st.lists(st.tuples(st.integers(0, 20_000_000), st.integers(1, 300)), min_size=1, max_size=5),
)
def test_a_client_that_spends_r_in_t_finds_as_much_again(counted: Limit, asked: list[tuple[int, int]]) -> None:
    """Spent at once, r is back after t. And r in t is no faster than q in w, so it can go on like that."""
    caller = Asked(counted)
    for pause_us, cost in asked:
        caller.now_us += pause_us
        if not caller.ask(min(cost, counted.capacity)):
            return
    quota, window = caller.number("RateLimit-Policy", "q"), caller.number("RateLimit-Policy", "w")
    left, seconds = caller.number("RateLimit", "r"), caller.number("RateLimit", "t")
    assert quota is not None
    assert left is not None
    assert seconds is not None
    assert left <= quota == int(caller.fields["X-RateLimit-Limit"])
    assert seconds >= 1
    assert counted.refill == "interval" or left * counted.window_us <= seconds * counted.quota * 1_000_000
    assert window is None or counted.refill == "interval" or seconds <= max(window, 1)
    assert caller.ask(left)
    caller.now_us += seconds * 1_000_000
    assert caller.ask(max(left, 1))


def names_of(*limits: dict[str, Any]) -> list[str]:
    fields = response_fields(decision(results(*[ALLOWED] * len(limits), limits=list(limits))))
    return re.findall('"([^"]*)"', fields["RateLimit-Policy"])


def test_no_policy_is_renamed_by_a_limit_that_comes_later() -> None:
    """Oldest first, as the snapshot has them."""
    coming = [
        limit(),
        limit("1.000000"),
        limit(algorithm="token_bucket"),
        limit(algorithm="gcra"),
        limit(anchor="first_request"),
        limit("1.000000", algorithm="gcra"),
        limit(algorithm="token_bucket", refill="interval"),
    ]
    expected = [
        "api", "api-1", "api-60", "api-60-gcra", "api-60-fixed_window", "api-1-gcra", "api-60-token_bucket",
    ]  # fmt: skip
    for count in range(1, len(coming) + 1):
        assert names_of(*coming[:count]) == expected[:count]


def test_a_name_that_is_taken_is_numbered() -> None:
    limits = [limit("1.000000"), limit("5.000000"), limit(anchor="first_request"), limit(algorithm="gcra")]
    limits += [limit(), limit("2.000000")]
    assert names_of(*limits) == ["api", "api-5", "api-60", "api-60-gcra", "api-60-fixed_window", "api-2"]
    calendar: dict[str, Any] = {"window_seconds": None, "calendar": "month"}
    months = [limit() | calendar | {"anchor_day": day} for day in (2, 3, 4, None)]
    assert names_of(*months) == ["api", "api-month", "api-month-fixed_window", "api-month-fixed_window-2"]
