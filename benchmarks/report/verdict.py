"""What we hold ourselves to, and where others are ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .tables import Results, number, table

ENGINE, ONE_RULE, THREE_RULES, SYNCED = "ours: engine.check", "1 rule", "3 rules", "3 rules, synced each second"


def aims(results: Results) -> str:
    """What must hold, and what was measured."""
    rows = [
        [what, number(limit, 2), number(found, 2), "" if found is None else "yes" if found <= limit else "**no**"]
        for what, limit, found in measured_aims(results)
    ]
    return table(["", "at most", "measured", "holds"], rows)


def measured_aims(results: Results) -> Iterator[tuple[str, float, float | None]]:
    """What, its limit, and what was found; `None` if it could not be measured."""
    pinned = results["decisions"].get("pinned") or results["decisions"].get("unpinned", {})

    def ratio(name: str, case: str = "allowed") -> float | None:
        found: float | None = pinned.get(case, {}).get(name, {}).get("ratio")
        return found

    yield "engine.check, 1 rule, to the floor", 0.95, ratio(f"{ENGINE}, {ONE_RULE}")
    yield "engine.check, 3 rules, to the floor", 1.35, ratio(f"{ENGINE}, {THREE_RULES}")
    yield "limiter.check(request), 3 rules, to the floor", 1.9, ratio(f"ours: limiter.check(request), {THREE_RULES}")
    yield "refused by denial memory, to the floor", 0.1, ratio(f"{ENGINE}, {ONE_RULE}, denial memory", "denied")
    yield "approximate, to the floor", 0.1, ratio(f"{ENGINE}, {ONE_RULE}, approximate")
    paced = results["latency"].get("us", {}).get("paced", {}).get(f"{ENGINE}, {THREE_RULES}", {})
    yield "p99 with 32 clients, 3 rules, ms", 5.0, paced["p99"] / 1_000 if paced else None
    sites = results["web"].get("sites", {})
    least = min((site["added_p50"] for name, site in sites.items() if is_peer(name)), default=None)
    for rules in (THREE_RULES, SYNCED):
        ours = sites.get(f"ours, {rules}", {}).get("added_p50")
        yield (
            f"added to a view by {rules}, to the least that any other adds with one",
            1.0,
            ours / least if ours is not None and least else None,
        )


def is_peer(site: str) -> bool:
    """Whether a site is limited by somebody else."""
    return not site.startswith("ours") and "no " not in site


def ahead(results: Results) -> str:
    """A list of the figures in which another does better than we do."""
    lines = [*faster_decisions(results["decisions"]), *cheaper_views(results["web"]), *smaller_keys(results["keys"])]
    return "\n".join(f"- {line}" for line in lines) or "Nobody was ahead in this run."


def faster_decisions(stage: Results) -> Iterator[str]:
    """Peers whose decision on one limit takes less time than ours on one rule, on one processor."""
    for case, found in stage.get("pinned", {}).items():
        mine = found.get(f"{ENGINE}, {ONE_RULE}", {}).get("us", 0)
        for name, figures in found.items():
            if not name.startswith(("ours", "floor")) and figures["us"] < mine:
                yield (
                    f"{name}: {number(figures['us'], 1)} µs for a decision ({case}); "
                    f"{ENGINE}, {ONE_RULE}: {number(mine, 1)} µs."
                )


def cheaper_views(stage: Results) -> Iterator[str]:
    """Peers that add less to a view with one limit than we do with three rules."""
    sites: dict[str, Any] = stage.get("sites", {})
    ours = sites.get(f"ours, {THREE_RULES}", {})
    for name, site in sites.items():
        if not ours or not is_peer(name):
            continue
        for figure, text in (("added_p50", "p50"), ("added_p99", "p99")):
            if site[figure] < ours[figure]:
                yield (
                    f"{name}, one limit: adds {number(site[figure])} µs to a view at {text}; "
                    f"ours with 3 rules: {number(ours[figure])} µs, with 1 rule: "
                    f"{number(sites.get(f'ours, {ONE_RULE}', {}).get(figure))} µs."
                )


def smaller_keys(stage: Results) -> Iterator[str]:
    """Peers whose key takes less memory."""
    found: dict[str, Any] = stage.get("bytes", {})
    ours = found.get(f"{ENGINE}, {ONE_RULE}", {}).get("once", 0)
    for name, sizes in found.items():
        if not name.startswith(("ours", "floor")) and sizes["once"] < ours - 1:
            yield f"{name}: {number(sizes['once'])} bytes for a caller; ours: {number(ours)}."
