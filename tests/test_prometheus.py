"""Metrics for Prometheus: of each decision in this process, and of the counts that wait to be collected."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from prometheus_client import REGISTRY

from django_ratelimiter import backend, limiter, prometheus
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit, Version
from django_ratelimiter.engine import breaker as resilience
from django_ratelimiter.engine.breaker import MAX_FAILURES, CircuitBreaker, open_breakers
from django_ratelimiter.identity import digest
from django_ratelimiter.limiter import events
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.signals import rules_changed
from django_ratelimiter.testing import RulesInForce, override_rules
from django_ratelimiter.usage.collector.alerts import Lag, lag
from django_ratelimiter.values.access import NOBODY

from .limiter.test_limiter import Broken
from .making import failing
from .urls import say_hello

urlpatterns = [path("metrics/", prometheus.metrics), path("", say_hello)]

pytestmark = pytest.mark.urls("tests.test_prometheus")

MINUTE_US = 60_000_000

Gained = Callable[..., float]


@pytest.fixture(autouse=True)
def gained(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gained]:
    """`gained(name, **labels)`: by how much a metric has grown since the test began."""
    before = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
    }
    monkeypatch.setattr(prometheus, "TIMED_SHARE", 1.1)
    monkeypatch.setattr(prometheus, "_known_epoch", 0)
    events.observer = prometheus._observe

    def grown(name: str, **labels: str) -> float:
        value = REGISTRY.get_sample_value(f"ratelimiter_{name}", labels) or 0.0
        return value - before.get((f"ratelimiter_{name}", *sorted(labels.items())), 0.0)

    yield grown
    events.observer = None


def decisions(gained: Gained, rule: str, tier: str = "") -> list[float]:
    """How often a rule has allowed, rejected, and rejected in shadow."""
    outcomes = ("allowed", "rejected", "shadow_rejected")
    return [gained("decisions_total", rule=rule, tier=tier, outcome=outcome) for outcome in outcomes]


def test_decisions_without_rules_are_counted(monkeypatch: pytest.MonkeyPatch, gained: Gained) -> None:
    rules = cache.rules_unread("closed")
    for name, value in (("current_rules", rules), ("rules_during_outage", rules), ("access_list", NOBODY)):
        monkeypatch.setattr(cache, name, lambda value=value: value)
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    assert limiter.check(RequestFactory().get("/")).unavailable
    assert decisions(gained, "without-rules") == [0, 1, 0]
    assert gained("degraded_decisions_total", rule="without-rules", tier="") == 1


def test_decisions_are_counted_by_rule_tier_and_outcome(
    client: Client, ratelimit_rules: RulesInForce, gained: Gained
) -> None:
    ratelimit_rules({"slug": "two", "limits": ["2/minute"]}, {"slug": "trial", "limits": ["1/day"], "mode": "shadow"})
    ratelimit_rules.tier = "pro"
    for _ in range(3):
        client.get("/")
    async_to_sync(AsyncClient().get)("/")
    assert decisions(gained, "two", "pro") == [2, 2, 0]
    assert decisions(gained, "trial", "pro") == [1, 0, 3]
    assert gained("decision_seconds_count") == 4
    assert 0 < gained("decision_seconds_sum") < 4
    with override_settings(RATELIMITER={"EXEMPT": "tests.limiter.test_exempt.exempts"}):
        client.get("/")
    assert gained("decisions_total", rule="two", tier="pro", outcome="exempt") == 1


def test_a_rule_of_several_limits_counts_once(client: Client, ratelimit_rules: RulesInForce, gained: Gained) -> None:
    soft = {"rate": "3/minute", "algorithm": "fixed_window", "soft_quota": 1}
    ratelimit_rules({"slug": "three", "limits": ["9/day", soft, "8/hour"]})
    for _ in range(4):
        client.get("/")
    assert decisions(gained, "three") == [3, 1, 0]
    assert gained("soft_exceeded_total", rule="three", tier="") == 2


def test_a_request_that_meets_no_rule_is_not_timed(
    client: Client, ratelimit_rules: RulesInForce, gained: Gained
) -> None:
    ratelimit_rules({"slug": "other", "limits": ["9/minute"], "path": "/other/"})
    client.get("/")
    assert gained("decision_seconds_count") == 0


def test_about_one_decision_in_eight_is_timed(
    monkeypatch: pytest.MonkeyPatch, ratelimit_rules: RulesInForce, gained: Gained
) -> None:
    monkeypatch.undo()
    with override_rules({"slug": "many", "limits": ["1000/minute"]}):
        for _ in range(400):
            limiter.check(RequestFactory().get("/"))
    assert decisions(gained, "many") == [400, 0, 0]
    assert 10 < gained("decision_seconds_count") < 150


@pytest.mark.parametrize(("policy", "expected"), [("local", [1, 0, 0]), ("open", [1, 0, 0]), ("closed", [0, 1, 0])])
def test_what_is_decided_without_the_engine_is_marked(
    client: Client, monkeypatch: pytest.MonkeyPatch, gained: Gained, policy: str, expected: list[float]
) -> None:
    with override_rules({"slug": policy, "limits": ["9/minute", "99/day"], "failure_policy": policy}):
        monkeypatch.setattr(backend, "_engine", Broken())
        client.get("/")
    assert decisions(gained, policy) == expected
    assert gained("degraded_decisions_total", rule=policy, tier="") == 1


def test_the_version_is_that_of_the_last_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    with override_rules({"slug": "any", "limits": ["9/minute"]}):
        decision = limiter.check(RequestFactory().get("/"))
    for number in (7, 8):
        later = decision.version._replace(number=number)
        prometheus._observe(type(decision)(True, False, 0.0, None, decision.results, later), 0.001, ())
        assert REGISTRY.get_sample_value("ratelimiter_rules_version") == number


def test_open_breakers_are_counted_while_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resilience, "_breakers", WeakValueDictionary())
    one, other = CircuitBreaker(), CircuitBreaker()
    for breaker in (one, other):
        for _ in range(MAX_FAILURES):
            breaker.fail(OSError("gone"))
    assert REGISTRY.get_sample_value("ratelimiter_breakers_open") == 2
    one.close()
    assert REGISTRY.get_sample_value("ratelimiter_breakers_open") == 1
    del breaker, other
    assert open_breakers() == 0


def test_an_observer_that_fails_breaks_no_request(
    client: Client, ratelimit_rules: RulesInForce, caplog: pytest.LogCaptureFixture
) -> None:
    events.observer = failing(OSError("disk full"))
    ratelimit_rules({"slug": "any", "limits": ["9/minute"]})
    assert client.get("/").status_code == 200
    assert "disk full" in caplog.text


def test_what_waits_is_told_by_its_oldest_minute() -> None:
    assert lag() == Lag(0.0, 0)
    now_us = time.time_ns() // 1_000
    for minutes in (10, 3, 0):  # this minute has not ended
        get_engine().check([Charge("key", Limit(9, 60), usage="rule|")], now_us=now_us - minutes * MINUTE_US)
    found = lag()
    assert found.batches == 2
    assert 540 <= found.seconds <= 601
    assert lag().batches == 2  # asking takes nothing away
    assert REGISTRY.get_sample_value("ratelimiter_batches_waiting") == 2
    assert 540 <= (REGISTRY.get_sample_value("ratelimiter_collector_lag_seconds") or 0) <= 602


def test_the_view_tells_all_and_names_no_caller(client: Client, ratelimit_rules: RulesInForce) -> None:
    ratelimit_rules({"slug": "each", "limits": ["1/minute"], "partition_by": ["ip"]})
    for _ in range(2):
        client.get("/", REMOTE_ADDR="203.0.113.77")
    response = client.get("/metrics/", REMOTE_ADDR="203.0.113.78")
    text = response.content.decode()
    assert response["Content-Type"].startswith("text/plain; version=")
    assert "no-store" in response["Cache-Control"]
    assert 'ratelimiter_decisions_total{outcome="rejected",rule="each",tier=""} 1.0' in text
    assert "ratelimiter_collector_lag_seconds 0.0" in text
    assert "203.0.113.7" not in text
    assert digest("ip:203.0.113.77") not in text
    assert client.post("/metrics/").status_code == 405


def test_while_the_engine_is_away_the_rest_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with override_rules():
        monkeypatch.setattr(backend, "_engine", Broken())
        text = client.get("/metrics/").content.decode()
    assert "ratelimiter_decision_seconds_count" in text
    assert "ratelimiter_collector_lag_seconds" not in text


def test_every_metric_stands_in_the_table_with_its_type() -> None:
    page = (Path(__file__).parent.parent / "docs/howto/usage.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `(ratelimiter_\w+)` \| (\w+) \|", page, re.MULTILINE))
    assert told == {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.type
        for metric in REGISTRY.collect()
        if metric.name.startswith("ratelimiter_")
    }


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    dashboard = json.loads((Path(__file__).parent.parent / "docs/howto/grafana.json").read_text("utf-8"))
    shown = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    named = {re.sub("_bucket$", "", name) for name in re.findall(r"ratelimiter_\w+", " ".join(shown))}
    assert named == {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in REGISTRY.collect()
        if metric.name.startswith("ratelimiter_")
    }


def test_each_new_epoch_of_the_rules_that_a_process_reads_is_counted(gained: Gained) -> None:
    for epoch in (1, 1, 2, 3, 3):
        rules_changed.send(RuleSet, version=Version(1, epoch))
    assert gained("rules_epochs_total") == 2
