"""The time that rules which do not match add to a request: `RuleSet.match` among 5 and among 500 rules.

Run: python -m benchmarks.matching. Prints microseconds per call and the ratio, medians of interleaved rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from django_ratelimiter.rules.ruleset import Facts, RuleSet
from tests.rules.build import rule_data, snapshot

CALLS, ROUNDS = 20_000, 15
REQUEST = Facts("GET", "/api/items/7/", "api/items/<int:pk>/", "api:item")


def rules(count: int) -> RuleSet:
    """Return three rules that match the request, by path, route and view, among equal numbers that do not."""
    met = [
        rule_data("met-prefix", path_kind="prefix", path="/api/"),
        rule_data("met-route", path_kind="route", path="api/items/<int:pk>/"),
        rule_data("met-view", view_name="api:item"),
    ]
    others: list[Callable[[int], dict[str, Any]]] = [
        lambda n: rule_data(f"r{n}", path_kind="prefix", path=f"/other/{n}/"),
        lambda n: rule_data(f"r{n}", path_kind="route", path=f"other/{n}/<int:pk>/"),
        lambda n: rule_data(f"r{n}", view_name=f"other:{n}"),
        lambda n: rule_data(f"r{n}", path_kind="exact", path=f"/other/{n}"),
        lambda n: rule_data(f"r{n}", scope=f"scope-{n}"),
    ]
    return RuleSet.from_snapshot(snapshot(*met, *(others[n % len(others)](n) for n in range(count - len(met)))))


def microseconds(call: Callable[[], object]) -> float:
    """Return the mean of one round."""
    begin = perf_counter()
    for _ in range(CALLS):
        call()
    return (perf_counter() - begin) / CALLS * 1e6


def main() -> None:
    """Measure and print."""
    few, many = rules(5), rules(500)
    assert len(few.match(REQUEST)) == len(many.match(REQUEST)) == 3
    rounds = [
        (microseconds(lambda: few.match(REQUEST)), microseconds(lambda: many.match(REQUEST))) for _ in range(ROUNDS)
    ]
    few_us, many_us = (median(column) for column in zip(*rounds, strict=True))
    print(f"match among   5 rules: {few_us:5.2f} us")
    print(f"match among 500 rules: {many_us:5.2f} us, {median(m / f for f, m in rounds):.2f} times as much")


if __name__ == "__main__":
    main()
