"""The page "Add an algorithm" is true: its blocks, put where it says, make an algorithm that all folders take up."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/howto/add-an-algorithm.md"

#: A file in backticks, at the end of the line before a block: the whole file, or what is added at its end.
PLACED = re.compile(r"^(At the end of )?(?:`(\w+)` in )?`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: What a new algorithm is taken up by without a change: the tests that ask for each algorithm in turn.
TAKE_IT_UP = (
    "tests/unit/test_twins.py",
    "tests/unit/test_every_algorithm.py",
    "tests/unit/test_registry.py",
    "tests/engine/redis/test_frame.py",
    "tests/admin/rules/test_limit_fields.py",
    "tests/admin/rules/test_sentences.py",
    "tests/admin/rules/newcomer.py",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, with what the page adds."""
    for folder in ("django_ratelimiter", "tests", "example_project"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    placed = PLACED.findall(PAGE.read_text("utf-8"))
    assert len(placed) == 4, "the entry, the two files and the reference"
    for at_the_end, owner, name, block in placed:
        place(tmp_path / name, block, owner) if at_the_end else (tmp_path / name).write_text(block, "utf-8")
    return tmp_path


def place(path: Path, block: str, owner: str) -> None:
    """Put a block at the end of a file; or what follows its `...` at the end of the class that it shows."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    end = len(lines)
    if owner:
        [end] = [node.end_lineno for node in ast.parse("".join(lines)).body if getattr(node, "name", "") == owner]
        block = block.partition("    ...\n")[2]
    path.write_text("".join([*lines[:end], block, *lines[end:]]), "utf-8")


@pytest.mark.once
def test_what_the_page_adds_is_taken_up(project: Path) -> None:
    unwanted = "PYTEST_", "REDIS_URL", "UNIT_TESTS", "COVERAGE_"  # the new file is not there when that reports
    given = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    brief = {"HYPOTHESIS_PROFILE": "brief", "TWIN_STEPS": "200", "TEST_DATABASE": "sqlite"}
    environment = {**given, **brief, "PYTHONPATH": str(project)}
    arguments = [
        "-q",
        "-c",
        "pyproject.toml",
        "-p",
        "no:cacheprovider",
        "-k",
        "session_window or newcomer",
        *TAKE_IT_UP,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 20, done.stdout
