"""`make test`: each test runs in some environment, what fails fails the run, and what is left out is named."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from ruamel.yaml import YAML

from .pages import ROOT
from .test_release import module

pytestmark = pytest.mark.once

CONFIG = tomllib.loads((ROOT / "tox.toml").read_text("utf-8"))
CLASSIFIERS = "\n".join(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"])
PYTHONS = re.findall(r"^Programming Language :: Python :: (\d\.\d+)$", CLASSIFIERS, re.MULTILINE)
DJANGOS = re.findall(r"^Framework :: Django :: (\d\.\d+)$", CLASSIFIERS, re.MULTILINE)
WORKFLOW = YAML(typ="safe").load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))

#: What stands for tox: two environments, of which one has a report of the tests of a small project, and a Python that
#: is not there.
TOX = """
import json, os, subprocess, sys
names = sys.argv[sys.argv.index("-e") + 1].split(",")
without = ["-p", "no:django", "-p", "no:django_ratelimiter", "-p", "no:cacheprovider"]
options = ["-q", *without, "-o", "junit_family=xunit1", "--junitxml=reports/suite.xml"]
code = subprocess.call([sys.executable, "-m", "pytest", *options, "tests"])
results = {name: {"success": True, "skipped": name.startswith("py")} for name in names}
results["suite"]["success"] = not code
with open("reports/tox.json", "w") as file:
    json.dump({"testenvs": {name: {"result": result} for name, result in results.items()}}, file)
sys.exit(code)
"""
LIST = "env_list = ['suite', 'budget', 'mariadb', 'py399-django99', 'lint']\nlabels.strict = ['budget']\n"
PASSES = "def test_that_passes(): pass\n"
FAILS = """
import pytest
class TestOfAClass:
    @pytest.mark.parametrize("text", ["a [b] 'c'"])
    def test_that_fails(self, text): assert "SIX" == "SEVEN"
"""
SKIPS = "import pytest\ndef test_that_is_skipped(): pytest.skip('nothing to see')\n"

Run = Callable[..., int]


@pytest.fixture
def ci(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`.ci/tests.py` in a folder with what stands for tox."""
    found = module(ROOT / ".ci/tests.py")
    monkeypatch.setattr(found, "ROOT", tmp_path)
    monkeypatch.setattr(found, "REPORTS", tmp_path / "reports")
    monkeypatch.setitem(found.NEEDS, "mariadb", lambda: None)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)  # it is not part of the run that we are in
    for name in (*found.LONG, "SEED", "REDIS_URL", "TEST_DATABASE", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(name, "1")  # what it changes is as it was afterwards
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tox.toml").write_text(LIST)
    (tmp_path / ".ci/tox").write_text(f"#!{sys.executable}\n{TOX}")
    (tmp_path / ".ci/tox").chmod(0o755)
    return found


@pytest.fixture
def run(ci: ModuleType, tmp_path: Path) -> Run:
    """Run a small project's tests: `run(text, *arguments)`."""

    def run_tests(text: str, *given: str) -> int:
        (tmp_path / "tests/test_some.py").write_text(text)
        return int(ci.main(list(given)))

    return run_tests


def test_what_fails_is_named_with_a_line_that_runs_it_again(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FAILS, "suite") == 1
    said = capsys.readouterr().out
    name = "tests/test_some.py::TestOfAClass::test_that_fails[a [b] 'c']"
    [line] = [line for line in said.splitlines() if ".ci/tox run" in line]
    assert shlex.split(line) == ["SEED=1", ".ci/tox", "run", "-e", "suite", "--", name]
    assert said.endswith("\n1 failed\n")


@pytest.mark.parametrize("text", ["raise SystemError('gone')", "def helper(): pass"])
def test_what_cannot_be_imported_and_a_run_without_tests_fail(run: Run, text: str) -> None:
    assert run(text, "suite") == 1


def test_an_environment_that_says_nothing_fails(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """It passed, and no report of its tests was found; "lint" has none."""
    assert run(PASSES, "suite", "lint") == 0
    assert run(PASSES, "suite", "mariadb") == 1
    assert ".ci/tox run -e mariadb\n" in capsys.readouterr().out


def test_what_is_left_out_is_named_and_fails_a_strict_run(
    ci: ModuleType, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ci.NEEDS, "mariadb", lambda: "apt-get install it")
    assert run(PASSES + SKIPS) == 0
    said = capsys.readouterr().out
    assert "left out:\n  mariadb (apt-get install it)\n  tests/test_some.py::test_that_is_skipped (skipped: no" in said
    assert "not on this machine:\n  py399-django99\n" in said
    assert run(PASSES + SKIPS, "--strict") == 1  # "budget" has no report
    assert "1 failed, 2 left out that must run" in capsys.readouterr().out


def test_a_missing_python_fails_only_who_names_it(ci: ModuleType, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ci.NEEDS, "mariadb", lambda: "apt-get install it")
    assert run(PASSES, "suite", "py399-django99") == 1
    assert run(PASSES, "suite", "mariadb") == 1
    monkeypatch.delitem(ci.NEEDS, "mariadb")
    assert run(PASSES, "suite", "lint", "--strict") == 0


def test_tests_that_are_named_run_with_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in ((".ci/tox", (ROOT / ".ci/tox").read_text()), (".venv/bin/tox", '#!/bin/sh\necho "$ROWS"')):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv("ROWS", raising=False)
    for given, rows in (["run", "-e", "redis"], ""), (["run", "-e", "redis", "--", "tests/some"], "0"):
        assert subprocess.check_output([tmp_path / ".ci/tox", *given], text=True).strip() == rows


def given_by(environment: str) -> list[str]:
    """Return the options and paths that an environment gives to pytest."""
    [command] = CONFIG["env"].get(environment, CONFIG["env_run_base"])["commands"]
    [given] = [part["default"] for part in command if isinstance(part, dict) and part["replace"] == "posargs"]
    return list(given)


def test_each_path_that_an_environment_names_is_there() -> None:
    """pytest says nothing of an --ignore that ignores nothing."""
    environments = {*CONFIG["env"], "py312-django60"} - {"lint", "docs"}
    options = {option for name in environments for option in given_by(name)}
    named = {option.removeprefix("--ignore=") for option in options if "tests" in option}
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_each_test_runs_somewhere() -> None:
    """`suite` runs all but browsers and the budget; browsers run in `latest`."""
    assert {"suite", "latest"} <= {*CONFIG["env_list"]}
    assert {"budget"} <= {*CONFIG["labels"]["strict"]} <= {*CONFIG["env_list"]}
    assert given_by("suite")[-1] == "tests"
    ignored = [option.partition("=")[2] for option in given_by("suite") if "ignore" in option]
    assert ignored == [path for path in given_by("budget") if path.startswith("tests/")]
    assert "-m=not long and not browser" in given_by("suite")
    assert "-m=browser or not (long or once)" in given_by("latest")
    with_browser = [file for file in (ROOT / "tests").rglob("test_*.py") if "IN_BROWSER" in file.read_text("utf-8")]
    paths = [ROOT / path for path in given_by("latest") if path.startswith("tests/")]
    missing = [file for file in with_browser if file != Path(__file__) and not {*file.parents} & {*paths}]
    assert missing == []


def test_each_declared_python_and_django_is_run() -> None:
    """Here with those that are on the machine, in the workflow on each pair; the README says what is declared."""
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in (ROOT / "README.md").read_text("utf-8")
    matrix = WORKFLOW["jobs"]["pairs"]["strategy"]["matrix"]
    assert (matrix["python"], matrix["django"]) == (PYTHONS, DJANGOS)
    listed = " ".join(CONFIG["env_list"])  # tox knows only what is made of these names
    assert {f"py{python.replace('.', '')}" for python in PYTHONS[1:]} <= set(re.findall(r"py3\d+", listed))
    assert {f"django{django.replace('.', '')}" for django in DJANGOS} <= set(re.findall(r"django\d+", listed))


def test_all_green_needs_every_job() -> None:
    jobs = WORKFLOW["jobs"]
    green = jobs["green"]
    assert set(green["needs"]) == set(jobs) - {"green"}
    assert green["if"] == "always()"
    [step] = green["steps"]
    for results, code in ((["success", "success"], 0), (["success", "skipped"], 1), (["failure"], 1)):
        environment = {**os.environ, "RESULTS": json.dumps(results)}
        done = subprocess.run(("bash", "-c", step["run"]), env=environment, capture_output=True)
        if done.returncode == 127:
            pytest.skip("no jq on this machine")
        assert done.returncode == code, results


def test_the_unit_tests_need_neither_django_nor_redis() -> None:
    """Nor do they import them, so that `pytest tests/unit` starts at once.

    Here they are only collected: `tests/unit/conftest.py` looks again when all have run, where they are run.
    """
    environment = {name: value for name, value in os.environ.items() if name != "UNIT_TESTS"}
    command = (sys.executable, "-m", "pytest", "-q", "tests/unit", "--collect-only")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_lines_of_these_files_are_few() -> None:
    files = [ROOT / "Makefile", *(path for path in (ROOT / ".ci").iterdir() if path.is_file())]
    assert sum(len(path.read_text("utf-8").splitlines()) for path in files) <= 250
