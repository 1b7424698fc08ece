"""Approximate mode as operators ask for it: what is rejected, what it says, and what a request is charged."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.test import RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.admin.rules.limits import sentences
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import EngineUnavailable
from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
from tests.making import failing, make_rule, update

pytestmark = pytest.mark.django_db(transaction=True)

Make = Callable[..., Rule]


@pytest.fixture
def make() -> Make:
    """Make a rule: `make(sync_interval_ms, **fields of its limit)`."""

    def make_near(interval: int | None, **fields: Any) -> Rule:
        algorithm = fields.pop("algorithm", "fixed_window")
        return make_rule("near", fields.pop("quota", 3), None, algorithm, fields, sync_interval_ms=interval)

    return make_near


@pytest.mark.parametrize(("interval", "seconds"), [(None, None), (0, None), (-1, -1.0), (250, 0.25)])
def test_milliseconds_in_a_row_are_seconds_of_a_charge(make: Make, interval: int | None, seconds: float | None) -> None:
    make(interval)
    [rule] = cache.current_rules().rules
    assert rule.sync_interval == seconds
    decision = limiter.check(RequestFactory().get("/"))
    assert [result.verdict.charge.sync_interval for result in decision.results if result.verdict] == [seconds]


def test_requests_within_the_interval_ask_nothing(make: Make, redis_client: redis.Redis) -> None:
    make(60_000)
    for _ in range(2):
        limiter.check(RequestFactory().get("/"))
    redis_client.config_resetstat()
    assert [limiter.check(RequestFactory().get("/")).allowed for _ in range(3)] == [False] * 3
    assert "cmdstat_evalsha" not in redis_client.info("commandstats")
    get_engine().flush()  # type: ignore[attr-defined]
    [usage] = [redis_client.hgetall(key) for key in redis_client.scan_iter("*usage:*")]
    assert {field: count for field, count in usage.items() if field} == {b"near|\na": b"2", b"near|\nd": b"3"}


def test_a_change_of_the_rule_is_obeyed_within_the_version_check_interval(make: Make) -> None:
    rule = make(60_000)
    assert [limiter.check(RequestFactory().get("/")).allowed for _ in range(4)] == [True, True, False, False]
    update(rule.limits, quota=4)
    assert [limiter.check(RequestFactory().get("/")).allowed for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [("leaky_bucket", "each request has a delay of its own"), ("concurrency", "its units are requests in progress")],
)
def test_units_that_cannot_be_fetched_in_advance_are_refused(make: Make, algorithm: str, reason: str) -> None:
    rule = make(500)
    limit = rule.limits.get()
    limit.algorithm = algorithm
    with pytest.raises(ValidationError, match=reason):
        limit.full_clean()
    RuleLimit.objects.update(algorithm=algorithm)
    left_out = RuleSet.from_snapshot(snapshot_of_rows()).left_out
    assert [(each.rule, reason in each.reason) for each in left_out] == [("near", True)]


def test_no_window_is_shorter_than_the_interval(make: Make) -> None:
    make(2_000, window_seconds=Decimal(1))
    [left_out] = RuleSet.from_snapshot(snapshot_of_rows()).left_out
    assert "not be shorter than sync_interval_ms" in left_out.reason


@pytest.mark.parametrize("interval", [-2, 3_600_001])
def test_what_is_no_interval(make: Make, interval: int) -> None:
    with pytest.raises(ValidationError, match="sync_interval_ms"):
        Rule(slug="other", name="Other", sync_interval_ms=interval).full_clean()
    with pytest.raises(IntegrityError, match="sync_interval"):
        Rule.objects.create(slug="other", name="Other", sync_interval_ms=interval, mode="enforce")


@pytest.mark.parametrize(
    ("interval", "says"),
    [(250, "keeps them for 0.25"), (-1, "Each process counts separately"), (None, ""), (0, "")],
)
def test_the_admin_tells_what_it_means(interval: int | None, says: str) -> None:
    rule = Rule(slug="near", name="Near", sync_interval_ms=interval)
    told = sentences(RuleLimit(rule=rule, algorithm="fixed_window", quota=3, window_seconds=Decimal(60)))
    assert says in told
    assert ("process" in told) is bool(says)


def test_a_process_that_answers_by_itself_obeys_new_rules_though_redis_is_away(
    make: Make, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(-1)
    monkeypatch.setattr(get_engine().counters, "now", lambda: now[0])  # type: ignore[attr-defined]
    assert asked_for() == 3
    for method in ("check", "publish"):
        monkeypatch.setattr(get_engine().engine, method, failing(EngineUnavailable("made to fail")))  # type: ignore[attr-defined]
    update(RuleLimit, quota=5)
    cache._state.outdated = False  # as if another process had saved it
    found = []
    for _ in range(130):
        found.append(asked_for())
        now[0] += 0.1
    assert [found[0], found[-1]] == [3, 5]


def asked_for() -> int:
    """The quota by which a request is decided."""
    return limiter.check(RequestFactory().get("/")).results[0].limit.quota
