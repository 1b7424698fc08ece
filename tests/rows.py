"""Has only some rows of each parametrized test run, where other runs ask all of them. A pytest plugin.

ROWS: how many; unset = all. The rows of a test call the same code with other values. Whether another Python or Django
changes what that code does is seen with a few of them; whether our code is right for each row is asked elsewhere. Which
rows run is drawn from the seed of pytest-randomly: another run asks others, and the same seed asks the same again.
Tests in a browser run whole: on the latest Django, and nowhere else.
"""

from __future__ import annotations

import os
import random

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rows that were not drawn."""
    count, rows = int(os.environ.get("ROWS", "0")), dict[str, list[pytest.Item]]()
    if not count:
        return
    for item in sorted(items, key=lambda item: item.nodeid):  # whatever order they come in
        rows.setdefault(item.nodeid.partition("[")[0], []).append(item)
    seed = getattr(config.option, "randomly_seed", 0)
    drawn = {
        item
        for test, all_rows in rows.items()
        for item in random.Random(f"{seed} {test}").sample(all_rows, min(count, len(all_rows)))
    }
    drawn |= {item for item in items if item.get_closest_marker("browser")}
    config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
    items[:] = [item for item in items if item in drawn]
