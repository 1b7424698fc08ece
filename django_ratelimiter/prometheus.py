"""Metrics for Prometheus. Importing this module starts measuring in this process. Needs the extra `prometheus`.

Each process counts its decisions, and Prometheus adds up the processes. So a scrape does not query the database, and
the numbers are seconds old. The usage reports count every request. The lag of the collector is read from Redis once in
each scrape. No label contains a partition.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from random import random
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from .decision import EXEMPT, Decision, Result
from .engine.base import Version
from .engine.breaker import on_state_change, open_breakers
from .exceptions import EngineUnavailable
from .limiter import events
from .rules.inline import PREFIX, is_listed
from .signals import rules_changed

#: Seconds. A decision takes a fraction of a millisecond, and at most DEADLINE_MS.
BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

#: The share of decisions that is timed, chosen at random: with files, timing costs as much as all the rest.
TIMED_SHARE: Final = 0.125

#: With this variable, prometheus-client keeps the numbers of several processes in files of one folder.
FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"

DECISIONS: Final = Counter(
    "ratelimiter_decisions",
    "Requests by outcome: allowed, rejected, rejected_by_other (another rule), shadow_rejected, exempt (its caller).",
    ("rule", "tier", "outcome"),
)
CORRECTED: Final = Counter(
    "ratelimiter_corrected_decisions",
    "Requests that were counted as allowed, and then as rejected_by_other when a later call rejected them.",
    ("rule", "tier"),
)
SOFT_EXCEEDED: Final = Counter(
    "ratelimiter_soft_exceeded", "Requests that were allowed beyond a soft quota.", ("rule", "tier")
)
DEGRADED: Final = Counter(
    "ratelimiter_degraded_decisions",
    "Requests that were decided without Redis, by the failure policy; or without rules.",
    ("rule", "tier"),
)
SECONDS: Final = Histogram(
    "ratelimiter_decision_seconds",
    "How long a decision took, waiting for Redis included; of one decision in eight.",
    buckets=BUCKETS,
)
BREAKERS: Final = Gauge(
    "ratelimiter_breakers_open",
    "Redis servers that are not called until they answer again; summed over processes.",
    multiprocess_mode="livesum",
)
VERSION: Final = Gauge(
    "ratelimiter_rules_version",
    "The version of the rules that a process last decided by; 0 = it has decided nothing yet.",
    multiprocess_mode="liveall",
)

EPOCHS: Final = Counter(
    "ratelimiter_rules_epochs", "New epochs of the rules that a process has read; many = two sites take turns."
)

_known_version: int | None = None
_known_epoch = 0


class CollectorLag(Collector):
    """The lag of the collector, read from Redis in every scrape; missing while Redis is unavailable."""

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics without values, so that registering does not call Redis."""
        yield GaugeMetricFamily(
            "ratelimiter_collector_lag_seconds",
            "Seconds since the end of the oldest minute that waits to be collected.",
        )
        yield GaugeMetricFamily("ratelimiter_batches_waiting", "Batches of usage that wait to be collected.")

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the current metrics."""
        from .usage.collector.alerts import lag  # with models: this module may be imported before they are

        try:
            values = lag()
        except EngineUnavailable:
            return
        for metric, value in zip(self.describe(), values, strict=True):
            metric.add_metric([], value)
            yield metric


LAG: Final = CollectorLag()


def registry() -> CollectorRegistry:
    """Return the registry to export: the default one, or with PROMETHEUS_MULTIPROC_DIR the one of all processes."""
    if not os.environ.get(FOLDER_VARIABLE):
        return REGISTRY
    together = CollectorRegistry()
    MultiProcessCollector(together)  # type: ignore[no-untyped-call]
    together.register(LAG)
    return together


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """A view of all metrics. It shows the names of rules and how busy they are: only Prometheus should reach it."""
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)


def _observe(decision: Decision, seconds: float, earlier: Sequence[Result]) -> None:
    """Record one decision. On the request path: it may take only a few microseconds."""
    results, is_rejected = decision.results, not decision.allowed
    for count in _counters_for(*[_labels(result, is_rejected=is_rejected) for result in results]):
        count()
    if is_rejected and earlier:
        for labels in _corrected([_labels(result, is_rejected=True) for result in earlier]):
            DECISIONS.labels(*labels, "rejected_by_other").inc()
            CORRECTED.labels(*labels).inc()
    if results and random() < TIMED_SHARE:
        SECONDS.observe(seconds)
    if decision.version.number != _known_version:
        _note_version(decision.version.number)
    if decision.degraded:
        for rule, tier in {_labels(result, is_rejected=is_rejected)[:2] for result in results}:
            DEGRADED.labels(rule, tier).inc()


def _labels(result: Result, *, is_rejected: bool) -> tuple[str, str, str]:
    """Return the labels of one result: its rule, its tier and its outcome. Rules that are not listed share one name."""
    rule, tier, verdict = result.rule, result.tier, result.verdict
    if result.mode == EXEMPT:
        outcome = EXEMPT
    elif result.passes and is_rejected:
        outcome = "rejected_by_other"
    elif result.passes:
        outcome = "soft_exceeded" if verdict is not None and verdict.soft_exceeded else "allowed"
    else:
        outcome = "rejected" if result.mode == "enforce" else "shadow_rejected"
    return rule.slug if is_listed(rule.slug) else PREFIX, "" if tier is None else tier.slug, outcome


@lru_cache(maxsize=10_000)
def _counters_for(*labels: tuple[str, str, str]) -> list[Callable[[], None]]:
    """Return what counts a decision: once for each rule and tier. A rule is rejected if one of its limits is."""
    outcomes: dict[tuple[str, str], str] = {}
    for rule, tier, outcome in labels:
        before = outcomes.get((rule, tier), "allowed")
        if before == "allowed" or outcome in ("rejected", "shadow_rejected"):
            outcomes[rule, tier] = outcome
    each: list[Callable[[], None]] = []
    for (rule, tier), outcome in outcomes.items():
        if outcome == "soft_exceeded":
            each.append(SOFT_EXCEEDED.labels(rule, tier).inc)
            outcome = "allowed"
        each.append(DECISIONS.labels(rule, tier, outcome).inc)
    return each


def _corrected(labels: Sequence[tuple[str, str, str]]) -> set[tuple[str, str]]:
    """Return rule and tier of the earlier decisions of a request that a later one corrects, as it rejects it."""
    whole = {(rule, tier) for rule, tier, outcome in labels if outcome == "rejected_by_other"}
    return whole - {(rule, tier) for rule, tier, outcome in labels if outcome == "shadow_rejected"}


def _note_version(number: int) -> None:
    global _known_version
    _known_version = number
    VERSION.set(number)
    _note_breakers()


def _note_epoch(version: Version, **_signal: object) -> None:
    global _known_epoch
    EPOCHS.inc(0 < _known_epoch != version.epoch)
    _known_epoch = version.epoch


def _note_breakers() -> None:
    BREAKERS.set(open_breakers())


def _reset_after_fork() -> None:
    """Drop the values of the gauges. Called in a forked child, which sets its own."""
    global _known_version
    _known_version = None


REGISTRY.register(LAG)
events.observer = _observe
rules_changed.connect(_note_epoch, dispatch_uid="django_ratelimiter.note_epoch")
on_state_change(_note_breakers)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_after_fork)
