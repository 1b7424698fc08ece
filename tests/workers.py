"""Has several processes share the tests of a large folder. A pytest plugin, named in pyproject.toml.

`pytest tests/engine` runs as with `-n3`. Files, single tests, small folders and a selection by -k run in one process,
for each worker takes seconds to start; so does what somebody wants to look into: --pdb, -s, a debugger. -n decides for
itself, and without pytest-xdist there are no workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

#: So many files of tests are worth it; and these folders, whose tests take seconds each.
MANY_FILES: Final = 10
SLOW: Final = tuple(
    Path(__file__).parent / name for name in ("engine/redis/cluster", "engine/redis/connections", "outages")
)

#: One more than processors, for tests that wait for servers; as in `.ci/stages.py`.
WORKERS: Final = max(2, min(4, (os.cpu_count() or 2) + 1))

#: Options that choose few tests, run none, or want them in this process.
ALONE: Final = (
    *("keyword", "lf", "stepwise", "usepdb", "trace"),
    *("collectonly", "setuponly", "setupplan", "setupshow", "showfixtures", "show_fixtures_per_test"),
)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Decide before pytest-xdist does, in the same hook."""
    if is_shared(config):
        config.option.numprocesses, config.option.dist = WORKERS, "worksteal"
    return (yield)


def is_shared(config: pytest.Config) -> bool:
    """Whether workers share the tests."""
    if not config.pluginmanager.hasplugin("xdist") or "PYTEST_XDIST_WORKER" in os.environ:
        return False
    option = config.option
    if option.numprocesses is not None or option.tx or option.capture == "no" or sys.gettrace() is not None:
        return False
    if any(getattr(option, name, False) for name in ALONE):
        return False
    return sum(files_of(config.invocation_params.dir / argument) for argument in config.args) >= MANY_FILES


def files_of(path: Path) -> int:
    """Return how many files of tests a folder holds; 0 for a file, or a test in one; enough for a slow folder."""
    if path.resolve() in SLOW:
        return MANY_FILES
    return sum(1 for _ in path.rglob("test_*.py")) if path.is_dir() else 0
