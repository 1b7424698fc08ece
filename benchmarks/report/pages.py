"""The tables in the pages: each stands between two comments that name it, and everything else is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from . import aims, growth, tables, verdict
from .tables import Results

#: Name of a block: what it says.
BLOCKS: Final[dict[str, Callable[[Results], str]]] = {
    "caption": tables.caption,
    "aims": aims.aims,
    "ahead": verdict.ahead,
    "decisions": tables.decisions,
    "decisions-unpinned": partial(tables.decisions, way="unpinned"),
    "trips": tables.trips,
    "exactness": tables.exactness,
    "latency": tables.latency,
    "web": tables.web,
    "loop": partial(tables.web, stage_name="loop"),
    "calls": tables.calls,
    "capacity": tables.capacity,
    "plan": growth.plan,
}
PAGES: Final = ("performance.md", "growth.md")
BLOCK: Final = re.compile(r"(<!-- bench: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Results) -> str:
    """The page with its blocks renewed. KeyError if it has one that is unknown."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{said(found[2], results)}\n\n{found[3]}", page)


def said(name: str, results: Results) -> str:
    """What a block says; if a stage has no results, that."""
    try:
        return BLOCKS[name](results)
    except KeyError as missing:
        if name not in BLOCKS:
            raise
        return f"Not measured: there are no results of {missing}."


def write_pages(results: Results, folder: Path) -> None:
    """Renew the blocks of all pages."""
    for name in PAGES:
        page = folder / name
        page.write_text(filled(page.read_text("utf-8"), results), "utf-8")
        print(f"Wrote {page}")


def print_tables(results: Results) -> None:
    """All blocks, one below the other."""
    for name in BLOCKS:
        print(f"\n{name}\n{said(name, results)}")
