"""A process without Redis does not grow with the visitors of the past, though nobody collects its usage."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_ratelimiter import limiter
from django_ratelimiter.decorators import is_ratelimited, ratelimit
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.engine.partition_stats import MemoryPartitions
from django_ratelimiter.rules import inline
from django_ratelimiter.testing import FrozenClock, override_rules

VISITORS_AN_HOUR = 20


def held(kept: Any) -> int:
    """Return how many entries are in the dictionaries and sets within this, without counters, which expire."""
    if isinstance(kept, Mapping | Set):
        inner = list(kept.values()) if isinstance(kept, Mapping) else []
        return len(kept) + sum(map(held, inner))
    if isinstance(kept, tuple):
        return sum(map(held, kept))
    parts = vars(kept) if isinstance(kept, MemoryEngine | MemoryPartitions) else {}
    return sum(held(part) for name, part in parts.items() if name != "_counters")


def test_days_of_visitors_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes once. Half of them are rejected, and each fourth is in a group of its own."""
    monkeypatch.setattr(inline, "_registered", {})
    monkeypatch.setattr(inline, "_MAX_RULES", 10)
    clock, factory, sizes = FrozenClock(), RequestFactory(), []

    @ratelimit(key="ip", rate="60/m")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def visit(number: int) -> None:
        request = factory.get("/", REMOTE_ADDR=f"10.0.{number >> 8}.{number & 255}")
        view(request)
        limiter.check(request, cost=3 if number % 2 else None)
        if number % 4 == 0:
            is_ratelimited(request, group=f"visitor-{number}", key="ip", rate="1/h", increment=True)

    with override_rules({"slug": "half", "limits": ["2/minute"], "partition_by": ["ip"]}, clock=clock) as rules:
        for number in range(3 * 24 * VISITORS_AN_HOUR):
            clock.advance(3_600 / VISITORS_AN_HOUR)
            visit(number)
            if number % (24 * VISITORS_AN_HOUR) == 0:
                sizes.append(held(rules.engine))
    assert sizes[-1] < 40 * VISITORS_AN_HOUR, sizes


def test_a_rule_in_code_beyond_those_that_are_listed_limits_but_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "_registered", {})
    monkeypatch.setattr(inline, "_MAX_RULES", 1)
    with override_rules() as rules:
        answers = [
            is_ratelimited(RequestFactory().get("/"), group=group, key="ip", rate="1/h", increment=True)
            for group in ("a", "b", "a", "b")
        ]
        rules.clock.advance(60)
        [batch] = rules.engine.take_usage()
    assert answers == [False, False, True, True]
    assert len(rules.engine.read_usage(batch)) == 1
