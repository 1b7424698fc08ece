"""The figures in which others are better."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .aims import ENGINE
from .tables import Results, number

#: Limiters for Django, and others, which a project must integrate itself.
MADE_FOR_DJANGO: Final = ("django-ratelimit", "django-smart-ratelimit", "DRF view, AnonRateThrottle")
OTHERS: Final = ("limits, fixed window", "throttled-py, token bucket", "pyrate-limiter, token bucket")


def ahead(results: Results) -> str:
    """Return a list of the figures in which another limiter is better than ours."""
    lines = [
        *faster_decisions(results["decisions"]),
        *cheaper_views(results["web"], "a view"),
        *cheaper_views(results["loop"], "a view under uvicorn"),
        *smaller_keys(results["keys"]),
    ]
    return "\n".join(f"- {line}" for line in lines) or "Nobody was ahead in this run."


def faster_decisions(stage: Results) -> Iterator[str]:
    """Yield peers whose decision on one limit takes less time than ours on one rule, on one processor."""
    for case, found in stage.get("pinned", {}).items():
        mine = found.get(f"{ENGINE}, 1 rule", {}).get("us", 0)
        for name, figures in found.items():
            if not name.startswith(("ours", "floor")) and figures["us"] < mine:
                yield (
                    f"{name}: {number(figures['us'], 1)} µs for a decision ({case}); "
                    f"{ENGINE}, 1 rule: {number(mine, 1)} µs."
                )


def cheaper_views(stage: Results, view: str) -> Iterator[str]:
    """Yield peers that add less to a view with one limit than we do with three rules, 2,000 callers in turn.

    view: what they are added to, for the text.
    """
    sites: dict[str, Any] = stage.get("sites", {})
    ours, one = (sites.get(f"ours, {rules}", {}) for rules in ("3 rules", "1 rule"))
    ways = [("turns", "p50", ""), ("turns", "p99", ""), ("refused", "p50", ", refused")]
    for name in (*MADE_FOR_DJANGO, *OTHERS):
        for way, part, suffix in ways:
            mine, theirs = (site.get(way, {}).get(f"added_{part}") for site in (ours, sites.get(name, {})))
            if mine is not None and theirs is not None and theirs < mine:
                single = one.get(way, {}).get(f"added_{part}")
                text = f", with 1 rule: {number(single)} µs" if single is not None else ""
                yield (
                    f"{name}, one limit{suffix}: adds {number(theirs)} µs to {view} at {part}; "
                    f"ours with 3 rules: {number(mine)} µs{text}."
                )


def smaller_keys(stage: Results) -> Iterator[str]:
    """Yield peers whose key takes less memory."""
    found: dict[str, Any] = stage.get("bytes", {})
    ours = found.get(f"{ENGINE}, 1 rule", {}).get("once", 0)
    for name, sizes in found.items():
        if not name.startswith(("ours", "floor")) and sizes["once"] < ours:
            yield f"{name}: {number(sizes['once'])} bytes for a caller after one request; ours: {number(ours)}."
