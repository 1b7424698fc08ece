"""Results as Markdown tables: pure functions of the stages' results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..instructions import added, floor_of

Results = Mapping[str, Any]

#: Maximum load at which a machine is considered quiet.
QUIET = 1.0
#: The prefix of our names.
OURS = "ours"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first contain figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    """Return a figure, or a dash if there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def named(name: str) -> str:
    """Return a contestant's name for a table: ours are highlighted."""
    return f"**{name}**" if name.startswith(OURS) else name


def caption(results: Results) -> str:
    """Return when, where and with what it was measured."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    brief = any(stage.get("brief") for stage in results.values() if isinstance(stage, Mapping))
    warnings = "**Preliminary: a brief run, rough figures.** " if brief else ""
    if machine["load"] > QUIET:
        warnings += "**The machine was busy with other work: compare ratios only.** "
    return (
        f"{warnings}Measured on {machine['date']}: {machine['machine']}, load {machine['load']} at the beginning; "
        f"{machine['server']}, Python {machine['python']}, {versions}.{of_other_runs(results)}"
    )


def of_other_runs(results: Results) -> str:
    """Return which stages were measured in other runs than the latest, and when; empty if none was."""
    runs: dict[str, list[str]] = {}
    for name, stage in results.items():
        if "run" in stage and stage["run"] != results["machine"]["date"]:
            runs.setdefault(stage["run"], []).append(name)
    return "".join(f" Measured on {date}: {', '.join(names)}." for date, names in sorted(runs.items()))


def failures(stage: Results) -> str:
    """Return which contestants could not be measured, and why; empty if all could."""
    if "broken" in stage:
        return f"\n\nNot measured: {stage['broken']}"
    failed: Mapping[str, str] = stage.get("failed", {})
    return "".join(f"\n\nNot measured: {name}. {reason}" for name, reason in failed.items())


def decisions(results: Results, way: str = "pinned") -> str:
    """Return microseconds of a decision and its ratio to the floor, client and server on one processor or not."""
    stage = results["decisions"]
    allowed, denied = (stage.get(way, {}).get(case, {}) for case in ("allowed", "denied"))
    rows = []
    for name in dict.fromkeys([*allowed, *denied]):
        cells = [named(name)]
        for found in (allowed.get(name, {}), denied.get(name, {})):
            cells += [number(found.get("us"), 1), number(found.get("ratio"), 2)]
        rows.append(cells)
    head = ["", "allowed, µs", "to the floor", "denied, µs", "to the floor"]
    return table(head, rows) + (failures(stage) if way == "pinned" else "")


def trips(results: Results) -> str:
    """Return round trips and memory of a caller."""
    stage, memory = results["trips"], results["keys"]
    rows = []
    for name in stage.get("allowed", {}):
        stored = memory.get("bytes", {}).get(name, {})
        cells = [number(stage[case][name], 2) for case in ("allowed", "denied")]
        cells += [number(stored.get("keys")), number(stored.get("once")), number(stored.get("full"))]
        rows.append([named(name), *cells])
    head = ["", "trips, allowed", "trips, denied", "keys of a caller", "bytes after 1 request", "bytes after 100"]
    return table(head, rows) + failures(stage) + failures(memory)


def exactness(results: Results) -> str:
    """Return how many are allowed by eight processes, and with a wrong clock."""
    crowd, clocks = results["crowd"], results["clocks"]
    rows = []
    for name, counts in crowd.get("admitted", {}).items():
        off = [way[name] for way in clocks.get("admitted", {}).values() if name in way]
        most = max((each["most"] for each in off), default=None)
        rows.append([named(name), number(max(counts)), number(most)])
    head = ["Allowed of a quota of 100, at most", "by 8 processes at once", "with a clock 30 s off"]
    return table(head, rows) + failures(crowd) + failures(clocks)


def latency(results: Results) -> str:
    """Return the wait with many clients."""
    stage = results["latency"]
    found = stage.get("us", {})
    rows = []
    for name in found.get("paced", {}):
        figures = (found[case][name][at] / 1_000 for case in ("paced", "saturated") for at in ("p50", "p99"))
        rows.append([named(name), *(number(figure, 2) for figure in figures)])
    head = ["32 clients at once", "paced: p50, ms", "p99, ms", "without a pause: p50, ms", "p99, ms"]
    return table(head, rows) + failures(stage)


def web(results: Results, stage_name: str = "web") -> str:
    """Return the results of a view under a web server, by the order of callers."""
    stage = results[stage_name]
    rows = []
    for name, site in stage.get("sites", {}).items():
        turns, row, refused = (site.get(way, {}) for way in ("turns", "row", "refused"))
        figures = [turns.get(each) for each in ("p50", "added_p50", "added_p99")]
        figures += [row.get("added_p50"), refused.get("added_p50"), site["per_second"]]
        rows.append([named(name), *map(number, figures)])
    head = ["", "p50, µs", "added", "added at p99", "added, one caller", "added, refused", "requests a second"]
    return table(head, rows) + failures(stage)


def instructions(results: Results) -> str:
    """Return what limiters add to a request, in thousands of instructions."""
    stage = results["instructions"]
    more = added(stage.get("rows", {}))
    rows = []
    for name, figure in more.items():
        floor = more.get(floor_of(name))
        rows.append([named(name), number(figure), number(figure / floor if floor else None, 2)])
    return table(["", "added, thousands", "to EVALSHA"], rows) + failures(stage)


def capacity(results: Results) -> str:
    """Return CPU time on each side, and what follows from it."""
    stage = results["capacity"]
    rows = []
    for name, cases in stage.get("loads", {}).items():
        for case in ("allowed", "denied"):
            load = cases[case]
            asked = load["calls"] >= 0.005
            cells = [number(load["server_us"], 1), number(1e6 / load["server_us"] if asked else None)]
            cells += [number(load["client_us"], 1), number(1e6 / load["client_us"]), number(load["calls"], 2)]
            rows.append([f"{named(name)}, {case}", *cells])
    head = [
        "8 clients at once",
        "server, µs",
        "calls/s, server",
        "client, µs",
        "decisions/s, process",
        "calls each",
    ]
    return table(head, rows) + failures(stage)
