"""Has only some rows of each parametrized test run, where other runs ask all of them. A pytest plugin.

ROWS: how many; unset = all. The rows of a test call the same code with other values. Whether another Python or Django
changes what that code does is seen with a few of them; whether our code is right for each row is asked elsewhere. Which
rows run is drawn from the seed of pytest-randomly: another run asks others, and the same seed asks the same again.
"""

from __future__ import annotations

import os
import random

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rows that were not drawn."""
    count = int(os.environ.get("ROWS", "0"))
    if not count:
        return
    left_out = set(undrawn([item.nodeid for item in items], count, getattr(config.option, "randomly_seed", 0)))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def undrawn(names: list[str], count: int, seed: int) -> list[str]:
    """Return the names of the rows that do not run: of each test, all but so many."""
    rows: dict[str, list[str]] = {}
    for name in sorted(names):  # whatever order they come in
        rows.setdefault(name.partition("[")[0], []).append(name)
    left_out: list[str] = []
    for test, all_rows in rows.items():
        drawn = random.Random(f"{seed} {test}").sample(all_rows, min(count, len(all_rows)))
        left_out += [row for row in all_rows if row not in drawn]
    return left_out
