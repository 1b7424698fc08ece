"""Our aims: the limits, the goals, and the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from .tables import Results, number, table

ENGINE: Final = "ours: engine.check"
#: Limiters for Django, and others, which a project must integrate itself.
MADE_FOR_DJANGO: Final = ("django-ratelimit", "django-smart-ratelimit", "DRF view, AnonRateThrottle")
OTHERS: Final = ("limits, fixed window", "throttled-py, token bucket", "pyrate-limiter, token bucket")


class Aim(NamedTuple):
    """A row of the table.

    must, aim: the maximum of the figure; `None` = there is only an aim. found: `None` = it could not be measured.
    """

    what: str
    must: float | None
    aim: float
    found: float | None

    def holds(self) -> str:
        """Return which of the two is met."""
        if self.found is None:
            return ""
        if self.found <= self.aim:
            return "aim"
        if self.must is None:
            return "not yet"
        return "must" if self.found <= self.must else "**no**"


def aims(results: Results) -> str:
    """Return the table."""
    rows = []
    for each in (*of_calls(results), *of_views(results), *of_views_on_loop(results), *of_decisions(results)):
        digits = 0 if each.aim >= 10 else 2
        rows.append([each.what, *(number(figure, digits) for figure in each[1:]), each.holds()])
    return table(["", "must", "aim", "measured", "holds"], rows)


def of_calls(results: Results) -> Iterator[Aim]:
    """Yield aims for the Python calls of a request."""
    found: Mapping[str, Any] = results.get("calls", {}).get("thread", {})

    def calls(name: str, figure: str = "again") -> float | None:
        calls: float | None = found.get(name, {}).get(figure)
        return calls

    yield Aim("Python calls of a request, 3 rules", 120, 90, calls("three rules"))
    yield Aim("the same, rejected", 150, 115, calls("three rules, refused"))
    yield Aim("the same, 1 rule", 110, 85, calls("one rule"))
    yield Aim("the same, a view that no rule names, above Django's own", 45, 30, calls("no rule", "added"))


def of_views(results: Results) -> Iterator[Aim]:
    """Yield aims for what is added to a view under gunicorn at p50, by 2,000 callers in turn."""
    sites: Mapping[str, Any] = results.get("web", {}).get("sites", {})
    ours, refused = added(sites, "ours, 3 rules"), added(sites, "ours, 3 rules", "refused")
    least, least_refused = least_added(sites, MADE_FOR_DJANGO), least_added(sites, MADE_FOR_DJANGO, "refused")
    floor, synced = added(sites, "no limiter, only EVALSHA"), "ours, 3 rules, synced each second"
    known = added(sites, "ours, 3 rules, user and key, and tiers")
    yield Aim("3 rules, to the least limiter made for Django", 1.0, 1.0, ratio(ours, least))
    yield Aim("3 rules, to one EVALSHA through redis-py", 1.25, 1.1, ratio(ours, floor))
    yield Aim("3 rules, to the least of all others", None, 1.0, ratio(ours, least_added(sites, OTHERS)))
    yield Aim("3 rules, rejected, to the least limiter made for Django", 1.0, 1.0, ratio(refused, least_refused))
    yield Aim("3 rules, rejected, to allowed", 1.15, 1.0, ratio(refused, ours))
    yield Aim("3 rules, synced each second, to exact", 1.0, 0.9, ratio(added(sites, synced), ours))
    yield Aim(
        "3 rules, synced each second, 20 callers, to exact",
        0.5,
        0.33,
        ratio(added(sites, f"{synced}, 20 callers"), ours),
    )
    yield Aim("3 rules by user, key and address, and tiers, to 3 rules by address", 1.15, 1.05, ratio(known, ours))


def of_views_on_loop(results: Results) -> Iterator[Aim]:
    """Yield the same aims under uvicorn."""
    sites: Mapping[str, Any] = results.get("loop", {}).get("sites", {})
    ours, floor = added(sites, "ours, 3 rules"), added(sites, "no limiter, only EVALSHA")
    least = least_added(sites, MADE_FOR_DJANGO)
    yield Aim("3 rules under uvicorn, to the least limiter made for Django", 1.0, 1.0, ratio(ours, least))
    yield Aim("3 rules under uvicorn, to one EVALSHA through redis.asyncio", None, 1.2, ratio(ours, floor))


def of_decisions(results: Results) -> Iterator[Aim]:
    """Yield aims for a decision alone, as a ratio to the floor."""
    stage = results.get("decisions", {})
    pinned = stage.get("pinned") or stage.get("unpinned", {})

    def to_floor(name: str, case: str = "allowed") -> float | None:
        found: float | None = pinned.get(case, {}).get(name, {}).get("ratio")
        return found

    yield Aim("engine.check, 1 rule, to the floor", 0.72, 0.7, to_floor(f"{ENGINE}, 1 rule"))
    yield Aim("engine.check, 3 rules, to the floor", 0.88, 0.85, to_floor(f"{ENGINE}, 3 rules"))
    path = to_floor("ours: limiter.check(request), 3 rules")
    yield Aim("limiter.check(request), 3 rules, to the floor", 1.9, 1.9, path)
    memory = to_floor(f"{ENGINE}, 1 rule, denial memory", "denied")
    yield Aim("rejected by denial memory, to the floor", 0.1, 0.1, memory)
    yield Aim("approximate, to the floor", 0.1, 0.1, to_floor(f"{ENGINE}, 1 rule, approximate"))
    paced = results.get("latency", {}).get("us", {}).get("paced", {}).get(f"{ENGINE}, 3 rules", {})
    yield Aim("p99 with 32 clients, 3 rules, ms", 5.0, 5.0, paced["p99"] / 1_000 if paced else None)


def added(sites: Mapping[str, Any], name: str, way: str = "turns") -> float | None:
    """Return the microseconds that a site adds at p50; `None` if it was not measured."""
    found: float | None = sites.get(name, {}).get(way, {}).get("added_p50")
    return found


def least_added(sites: Mapping[str, Any], names: tuple[str, ...], way: str = "turns") -> float | None:
    """Return the least that any of these adds."""
    return min((us for name in names if (us := added(sites, name, way)) is not None), default=None)


def ratio(ours: float | None, other: float | None) -> float | None:
    """Return our figure divided by the other."""
    return None if ours is None or not other else ours / other
