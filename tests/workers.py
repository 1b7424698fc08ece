"""Has several processes share the tests of a large folder, as with `-n3`. A pytest plugin, named in pyproject.toml.

Files, single tests, small folders and a selection by -k run in one process, for each worker takes seconds to start; so
does what somebody wants to look into: --pdb, -s, a debugger. -n decides for itself.
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
SLOW: Final = [Path(__file__).parent / name for name in ("engine/redis/cluster", "engine/redis/connections", "outages")]

#: One more than processors, for tests that wait for servers.
WORKERS: Final = max(2, min(4, (os.cpu_count() or 2) + 1))

#: Options that choose few tests, run none, or want them in this process.
ALONE: Final = (
    *("keyword", "lf", "stepwise", "usepdb", "trace", "tx"),
    *("collectonly", "setuponly", "setupplan", "setupshow", "showfixtures", "show_fixtures_per_test"),
)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Decide before pytest-xdist does, in the same hook."""
    option = config.option
    is_free = config.pluginmanager.hasplugin("xdist") and "PYTEST_XDIST_WORKER" not in os.environ
    if is_free and option.numprocesses is None and option.capture != "no" and sys.gettrace() is None:
        paths = [config.invocation_params.dir / argument for argument in config.args]
        is_large = any(path.resolve() in SLOW for path in paths) or (
            sum(len([*path.rglob("test_*.py")]) for path in paths if path.is_dir()) >= MANY_FILES
        )
        if is_large and not any(getattr(option, name, False) for name in ALONE):
            option.numprocesses, option.dist = WORKERS, "worksteal"
    return (yield)
