"""Results as Markdown tables. In the pages each table is between two comments that name it; all other text stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from .instructions import EVALSHA, EVALSHA_ON_LOOP, added, floor_of
from .registry import REMEMBERING

Results = Mapping[str, Any]

#: Maximum load at which a machine is considered quiet.
QUIET: Final = 1.0

REJECTED: Final = ", rejected"
#: The limiters in the first table of measurements.md.
SUMMARY: Final = (
    *(EVALSHA, "limits, fixed window", "django-ratelimit", "django-smart-ratelimit"),
    *("DRF's AnonRateThrottle on django-redis", "ours: a view that no rule names", "ours: one rule"),
    *("ours: three rules", "ours: by user, key and address, tiers", "ours: @ratelimit with a rate"),
    *("ours: RuleThrottle, by user", "ours: RuleThrottle, by address and user", "ours: AnonRateThrottle"),
    *(EVALSHA_ON_LOOP, "ours on an event loop: three rules"),
)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first contain figures."""
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join((first, f"|---|{'---:|' * (len(head) - 1)}", *others))


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


def summary(results: Results) -> str:
    """Return what the limiters that most readers look for add to a request, in thousands of instructions."""
    stage = results["instructions"]
    more = added(stage.get("rows", {}))
    rows = []
    for name in (name for name in more if name in SUMMARY):
        cells, floor = [named(name)], more.get(floor_of(name))
        for figure in (more.get(name), more.get(name + REJECTED)):
            cells += [number(figure), number(figure / floor if figure and floor else None, 2)]
        rows.append(cells)
    return table(["", "allowed, thousands", "to EVALSHA", "rejected", "to EVALSHA"], rows) + failures(stage)


def decisions(results: Results) -> str:
    """Return the time of a decision, its round trips, memory, and what is allowed at most."""
    stage, trips, keys, exactness = (results[name] for name in ("decisions", "trips", "keys", "exactness"))
    times, asked, stored = stage.get("times", {}), trips.get("trips", {}), keys.get("bytes", {})
    rows = []
    for name in dict.fromkeys(name for name in (*times, *asked) if name not in REMEMBERING):
        cells = [named(name)]
        allowed = times.get(name, {}).get("allowed", {})
        cells += [number(allowed.get("us"), 1), number(allowed.get("ratio"), 2), number(asked.get(name), 2)]
        cells += [number(stored.get(name, {}).get(part)) for part in ("once", "full")]
        rows.append([*cells, *(number(exactness.get(each, {}).get(name)) for each in ("crowd", "clock"))])
    head = ["", "allowed, µs", "to the floor", "round trips"]
    head += ["bytes, 1 request", "bytes, 100", "8 at once", "wrong clock"]
    return table(head, rows) + failures(stage, trips, keys, exactness)


def capacity(results: Results) -> str:
    """Return how many decisions a server and a process carry, computed from the CPU time of each."""
    stage = results["capacity"]
    rows = []
    for name, cases in stage.get("loads", {}).items():
        both = [cases.get(case) for case in ("allowed", "rejected")]
        asked = [load if load and load["calls"] >= 0.005 else None for load in both]
        cells = [number(1e6 / load["server_us"] if load else None) for load in asked]
        cells += [number(1e6 / load["client_us"] if load else None) for load in both]
        rows.append([named(name), *cells])
    head = ["8 clients at once; decisions/s", "server, allowed", "rejected", "process, allowed", "rejected"]
    return table(head, rows) + failures(stage)


#: Name of a block: its text.
BLOCKS: Final[dict[str, Callable[[Results], str]]] = {
    each.__name__: each for each in (caption, summary, decisions, capacity)
}
PAGE: Final = "measurements.md"
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


def write_page(results: Results, folder: Path) -> None:
    """Update the blocks of the page."""
    page = folder / PAGE
    page.write_text(filled(page.read_text("utf-8"), results), "utf-8")
    print(f"Wrote {page}")


def print_tables(results: Results) -> None:
    """Print all blocks."""
    for name in BLOCKS:
        print(f"\n{name}\n{said(name, results)}")
