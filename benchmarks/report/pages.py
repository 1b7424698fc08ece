"""The tables in the pages: each is between two comments that name it; all other text stays."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from . import aims, growth, tables, verdict
from .tables import Results

#: Name of a block: its text.
BLOCKS: Final[dict[str, Callable[[Results], str]]] = {
    "caption": tables.caption,
    "aims": aims.aims,
    "instructions": tables.instructions,
    "ahead": verdict.ahead,
    "decisions": tables.decisions,
    "decisions-unpinned": partial(tables.decisions, way="unpinned"),
    "trips": tables.trips,
    "exactness": tables.exactness,
    "latency": tables.latency,
    "web": tables.web,
    "loop": partial(tables.web, stage_name="loop"),
    "capacity": tables.capacity,
    "plan": growth.plan,
}
PAGES: Final = ("performance.md", "growth.md")
BLOCK: Final = re.compile(r"(<!-- bench: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Results) -> str:
    """Return the page with updated blocks. Raises KeyError for an unknown block."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{said(found[2], results)}\n\n{found[3]}", page)


def said(name: str, results: Results) -> str:
    """Return the text of a block; a note if a stage has no results."""
    try:
        return BLOCKS[name](results)
    except KeyError as missing:
        if name not in BLOCKS:
            raise
        return f"Not measured: there are no results of {missing}."


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
