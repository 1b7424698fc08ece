"""Results as Markdown tables. In the pages each table is between two comments that name it; all other text stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final

from .instructions import added, floor_of

Results = Mapping[str, Any]

#: Maximum load at which a machine is considered quiet.
QUIET: Final = 1.0

#: The plan: requests a second, web processes, and the maximum load of a server's processor.
REQUESTS, PROCESSES, BUSY = 1_000_000, 2_000, 0.5
#: A flood: this many callers send this share of all requests. Each process remembers a rejection for a second.
FLOODERS, FLOOD = 20, 0.2
ONE, THREE, NODE = "ours: engine.check, 1 rule", "ours: engine.check, 3 rules", ", cluster node"
PATH: Final = "ours: limiter.check(request), 3 rules"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first contain figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    """Return a figure, or a dash if there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def named(name: str) -> str:
    """Return a contestant's name for a table: ours are highlighted."""
    return f"**{name}**" if name.startswith("ours") else name


def failures(*stages: Results) -> str:
    """Return which contestants could not be measured, and why; empty if all could."""
    lines = []
    for stage in stages:
        if "broken" in stage:
            lines.append(f"Not measured: {stage['broken']}")
        lines += [f"Not measured: {name}. {reason}" for name, reason in stage.get("failed", {}).items()]
    return "".join(f"\n\n{line}" for line in dict.fromkeys(lines))


def caption(results: Results) -> str:
    """Return when, where and with what it was measured."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    brief = any(stage.get("brief") for stage in results.values())
    warnings = "**Preliminary: a brief run, rough figures.** " if brief else ""
    if machine["load"] > QUIET:
        warnings += "**The machine was busy with other work: compare ratios only.** "
    runs: dict[str, list[str]] = {}
    for name, stage in results.items():
        if stage.get("run", machine["date"]) != machine["date"]:
            runs.setdefault(stage["run"], []).append(name)
    others = "".join(f" Measured on {date}: {', '.join(names)}." for date, names in sorted(runs.items()))
    return (
        f"{warnings}Measured on {machine['date']}: {machine['machine']}, load {machine['load']} at the beginning; "
        f"{machine['server']}, Python {machine['python']}, {versions}.{others}"
    )


def instructions(results: Results) -> str:
    """Return what limiters add to a request, in thousands of instructions."""
    stage = results["instructions"]
    more = added(stage.get("rows", {}))
    rows = []
    for name, figure in more.items():
        floor = more.get(floor_of(name))
        rows.append([named(name), number(figure), number(figure / floor if floor else None, 2)])
    return table(["", "added, thousands", "to EVALSHA"], rows) + failures(stage)


def decisions(results: Results) -> str:
    """Return the time of a decision, its round trips, memory, and what is allowed at most."""
    stage, trips, keys, exactness = (results[name] for name in ("decisions", "trips", "keys", "exactness"))
    times, asked, stored = stage.get("times", {}), trips.get("trips", {}), keys.get("bytes", {})
    rows = []
    for name in dict.fromkeys([*times, *asked]):
        cells = [named(name)]
        for case in ("allowed", "rejected"):
            found = times.get(name, {}).get(case, {})
            cells += [number(found.get("us"), 1), number(found.get("ratio"), 2)]
        cells.append(number(asked.get(name), 2))
        cells += [number(stored.get(name, {}).get(part)) for part in ("once", "full")]
        rows.append([*cells, *(number(exactness.get(each, {}).get(name)) for each in ("crowd", "clock"))])
    head = ["", "allowed, µs", "to the floor", "rejected, µs", "to the floor", "round trips"]
    head += ["bytes, 1 request", "bytes, 100", "8 at once", "wrong clock"]
    return table(head, rows) + failures(stage, trips, keys, exactness)


def capacity(results: Results) -> str:
    """Return CPU time on each side, and what follows from it."""
    stage = results["capacity"]
    rows = []
    for name, cases in stage.get("loads", {}).items():
        for case, load in cases.items():
            asked = load["calls"] >= 0.005
            cells = [number(load["server_us"], 1), number(1e6 / load["server_us"] if asked else None)]
            cells += [number(load["client_us"], 1), number(1e6 / load["client_us"]), number(load["calls"], 2)]
            rows.append([f"{named(name)}, {case}", *cells])
    head = ["8 clients at once", "server, µs", "calls/s, server", "client, µs", "decisions/s, process", "calls each"]
    return table(head, rows) + failures(stage)


def plan(results: Results) -> str:
    """Return calls per second, and the processors for them, for several ways to decide a million requests."""
    stage = results["capacity"]
    loads: dict[str, Any] = stage.get("loads", {})
    if ONE not in loads or THREE not in loads:
        return failures(stage).strip() or "Not measured."
    head = ["1,000,000 requests a second", "calls/s to Redis", "server, µs a call", "masters at 50 %"]
    rows = [
        [name, number(calls), number(us, 1), number(ceil(calls * us / 1e6 / BUSY))] for name, calls, us in ways(loads)
    ]
    if PATH not in loads:
        return table(head, rows)
    us = loads[PATH]["allowed"]["client_us"]
    return (
        f"{table(head, rows)}\n\nThe web servers spend {number(us, 1)} µs of processor time on each decision of 3 "
        f"rules: {number(ceil(REQUESTS * us / 1e6))} processors of the many that a million views a second take anyway."
    )


def ways(loads: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield name, calls per second, and microseconds of the server for each. Processes sync once a second."""
    one, three = (float(loads.get(name + NODE, loads[name])["allowed"]["server_us"]) for name in (ONE, THREE))
    yield "1 rule, exact", REQUESTS, one
    yield "3 rules in one shard, exact", REQUESTS, three
    yield "3 rules in three shards, exact", 3 * REQUESTS, one
    flood = min(FLOOD * REQUESTS, PROCESSES * FLOODERS)
    yield "3 rules in one shard; a fifth is a flood, which denial memory meets", (1 - FLOOD) * REQUESTS + flood, three
    yield "1 rule for each of very many callers, approximate", REQUESTS, one
    yield "1 rule for everybody, approximate", min(REQUESTS, PROCESSES), one


#: Name of a block: its text.
BLOCKS: Final[dict[str, Callable[[Results], str]]] = {
    each.__name__: each for each in (caption, instructions, decisions, capacity, plan)
}
PAGES: Final = ("performance.md", "growth.md")
BLOCK: Final = re.compile(r"(<!-- bench: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Results) -> str:
    """Return the page with updated blocks; those without results stay. Raises KeyError for an unknown block."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{said(found[2], results, found[3].strip())}\n\n{found[4]}", page)


def said(name: str, results: Results, otherwise: str = "") -> str:
    """Return the text of a block; if a stage has no results, `otherwise`, or a note."""
    block = BLOCKS[name]
    try:
        return block(results)
    except KeyError as missing:
        return otherwise or f"Not measured: there are no results of {missing}."


def write_pages(results: Results, folder: Path) -> None:
    """Update the blocks of all pages."""
    for name in PAGES:
        page = folder / name
        page.write_text(filled(page.read_text("utf-8"), results), "utf-8")
        print(f"Wrote {page}")


def print_tables(results: Results) -> None:
    """Print all blocks."""
    for name in BLOCKS:
        print(f"\n{name}\n{said(name, results)}")
