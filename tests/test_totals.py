"""The size of the code, and how much tests look inside, held by a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent


#: Lines of Python, which may only fall; without migrations.
TOTALS = {
    "django_ratelimiter": 38_694,
    "django_ratelimiter/engine/local": 570,
    "django_ratelimiter/headers": 667,
    "django_ratelimiter/limiter": 1_825,
    "tests": 55_954,
    "benchmarks": 2_952,
}

#: Of the documentation.
PAGES, WORDS = 34, 42_000

#: Uses of private names in tests (SLF001).
PRIVATE_IN_TESTS = 127


def ruff(*rules: str, folder: str) -> list[dict[str, str]]:
    """What ruff finds by these rules alone, with no exception made."""
    program = Path(sys.executable).parent / "ruff"
    if not program.exists():
        pytest.skip("ruff is not installed here")
    limits = ("--config", "lint.mccabe.max-complexity=10", "--config", "lint.pylint.max-args=7")
    command = (program, "check", "--isolated", "--ignore-noqa", "--output-format=json", *limits, "--select")
    done = subprocess.run((*command, ",".join(rules), folder), cwd=ROOT, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_tests_use_no_more_private_names() -> None:
    """Fewer is better; put the number down then."""
    assert len(ruff("SLF001", folder="tests")) == PRIVATE_IN_TESTS


def test_there_are_no_more_lines_than_before() -> None:
    """Size is a cost: before code is added, other code becomes unnecessary and goes."""
    lines = dict.fromkeys(TOTALS, 0)
    for name in TOTALS:
        for path in (ROOT / name).rglob("*.py"):
            lines[name] += 0 if "migrations" in path.parts else path.read_text("utf-8").count("\n")
    assert {name: (found, TOTALS[name]) for name, found in lines.items() if found > TOTALS[name]} == {}


def test_the_docs_can_be_held_in_one_hand() -> None:
    """What a page says stands nowhere else; what no reader acts on goes."""
    pages = [path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) <= PAGES
    assert sum(len(page.split()) for page in pages) <= WORDS
