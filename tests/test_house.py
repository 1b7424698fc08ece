"""The order of the code, held by a machine: names, and what ruff counts.

What breaks a rule today is listed. Each list is exact, so it only gets shorter: who mends something takes it off.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "django_ratelimiter"
SOURCES = {
    str(path.relative_to(PACKAGE)): path.read_text("utf-8")
    for path in sorted(PACKAGE.rglob("*"))
    if path.suffix in (".py", ".lua") and path.parts[len(PACKAGE.parts)] != "migrations"  # which Django has written
}
TREES = {name: ast.parse(text) for name, text in SOURCES.items() if name.endswith(".py")}

#: Words that only we used for what others have a word for: connection, pool, template, counter, notified, cached …
BANNED = {
    *("budget", "crowded", "held", "kept", "ledger", "planner", "rider", "settlement", "sheet", "stencil", "stock"),
    *("take", "told", "unsent", "wire"),
}
#: What projects and their engines call us by.
CONTRACT = {"take_usage"}

#: Definitions with a banned word.
DEFINED: set[str] = set()

#: Names that several public classes have.
TWICE: set[str] = set()

#: Generators that are driven by hand.
DRIVEN_BY_HAND = 1

#: Functions that are too complex (C901), or that take too many arguments (PLR0913), by file. pyproject.toml names the
#: same files.
COMPLEX: dict[str, dict[str, int]] = {
    "decorators/__init__.py": {"PLR0913": 1},
    "engine/redis/core.py": {"PLR0913": 1},
    "engine/redis/connections/transport.py": {"C901": 1},
    "engine/redis/protocol.py": {"PLR0913": 1},
    "limiter/charges.py": {"PLR0913": 1},
    "rules/inline.py": {"PLR0913": 1},
}

#: Lines of Python, which may only fall; without migrations.
TOTALS = {"django_ratelimiter": 49_700, "tests": 63_500, "benchmarks": 3_100}

#: Uses of private names in tests (SLF001).
PRIVATE_IN_TESTS = 162


def definitions() -> Iterator[str]:
    """The names of all classes, functions and methods."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name


def words(name: str) -> set[str]:
    """The words of a name in CamelCase or snake_case, without an s at their end."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def public_classes() -> Iterator[str]:
    """Names of classes that can be imported. Django wants the same name for the class of each command."""
    for name, tree in TREES.items():
        if not name.startswith("management/commands/"):
            yield from (node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")


def ruff(*rules: str, folder: str) -> list[dict[str, str]]:
    """What ruff finds by these rules alone, with no exception made."""
    program = Path(sys.executable).parent / "ruff"
    if not program.exists():
        pytest.skip("ruff is not installed here")
    limits = ("--config", "lint.mccabe.max-complexity=10", "--config", "lint.pylint.max-args=7")
    command = (program, "check", "--isolated", "--ignore-noqa", "--output-format=json", *limits, "--select")
    done = subprocess.run((*command, ",".join(rules), folder), cwd=ROOT, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_names_are_split_into_words() -> None:
    assert words("_AsyncStocks") == {"async", "stock"}
    assert words("take_usage") == {"take", "usage"}
    assert words("TLSWire2") == {"tl", "wire"}  # of tls, without its s


def test_no_definition_has_a_banned_word() -> None:
    assert {name for name in definitions() if words(name) & BANNED} - CONTRACT == DEFINED


def test_no_public_class_has_the_name_of_another() -> None:
    assert {name for name, times in Counter(public_classes()).items() if times > 1} == TWICE


def test_at_most_one_generator_is_driven_by_hand() -> None:
    found = [name for name, text in SOURCES.items() for _ in range(text.count("except StopIteration as end"))]
    assert len(found) == DRIVEN_BY_HAND, found


def test_functions_are_simple_and_take_few_arguments() -> None:
    """pyproject.toml excepts whole files; so many functions may break the rules in each."""
    found: dict[str, Counter[str]] = {}
    for each in ruff("C901", "PLR0913", folder="django_ratelimiter"):
        found.setdefault(str(Path(each["filename"]).relative_to(PACKAGE)), Counter())[each["code"]] += 1
    assert found == COMPLEX


def test_files_that_are_excepted_from_ruff_are_listed_here() -> None:
    ignored = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
    excepted = {name: set(rules) & {"C901", "PLR0913"} for name, rules in ignored.items() if "*" not in name}
    listed = {f"django_ratelimiter/{name}": set(counts) for name, counts in COMPLEX.items()}
    assert {name: rules for name, rules in excepted.items() if rules} == listed


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
