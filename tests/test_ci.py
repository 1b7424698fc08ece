"""`make test`: which stages there are, what is run again, and what the end of the output says."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [path.stem for path in (ROOT / ".ci").glob("*.py")]

PROJECT = {
    # To load all plugins took longer than the tests do.
    "pytest.ini": "[pytest]\naddopts = -p no:django -p no:django_ratelimiter -p no:hypothesispytest -p no:anyio\n",
    "tests/test_some.py": """
import os, random, pytest

def test_that_passes(): pass

def test_that_is_skipped(): pytest.skip("nothing to see")

class TestOfAClass:
    @pytest.mark.parametrize("text", ["a [b] 'c'"])
    def test_that_fails_beside_others(self, text):
        with open("drawn", "a") as file:
            print(random.random(), file=file)
        assert "PYTEST_XDIST_WORKER" not in os.environ, "starved of time"
""",
}
STEADY = {"tests/test_steady.py": "def test_that_fails_always(): assert 'SIX' == 'SEVEN'\n"}
#: A program that ends once another of its kind has begun.
MEET = """import sys, pathlib as p; p.Path(sys.argv[1]).touch()\nwhile not p.Path(sys.argv[2]).exists(): pass"""
UNSTEADY = "tests/test_some.py::TestOfAClass::test_that_fails_beside_others[a [b] 'c']"


@pytest.fixture
def ci() -> Iterator[SimpleNamespace]:
    """The modules of `.ci`, which is no package."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(ROOT / ".ci"))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def project(ci: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project whose suite has a test of each kind; stages run in it."""
    for module in (ci.running, ci.stages):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)  # it is not part of the run that we are in
    add(tmp_path, PROJECT)
    return tmp_path


def add(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def ran(ci: Any, project: Path, *lanes: Any) -> Any:
    """Run stages in lanes; what came of them."""
    outcome = ci.running.Outcome()
    ci.running.Runner(outcome, project / "logs").run(*lanes)
    return outcome


def suite(ci: Any, **options: Any) -> Any:
    return ci.stages.Suite("tests: here", Path(sys.executable), ("tests",), workers=2, **options)


@pytest.mark.once
def test_a_test_that_fails_beside_others_and_passes_alone_is_named_and_passed(
    ci: Any, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = ran(ci, project, [suite(ci)])
    assert (outcome.passed, outcome.failures) == (2, [])
    assert [failure.name for failure in outcome.unsteady] == [UNSTEADY]
    assert len(set((project / "drawn").read_text().split())) == 1, "asked again with the same seed"
    assert ci.running.sum_up(outcome, 65.0, strict=True) == 0
    before, _, after = capsys.readouterr().out.partition("\nunsteady: failed beside others, passed alone\n")
    assert 'assert "PYTEST_XDIST_WORKER" not in os.environ, "starved of time"' in before
    assert UNSTEADY in after
    assert after.splitlines()[-1] == "2 passed (1 unsteady), 0 failed in 1:05"
    assert outcome.skipped == {"tests/test_some.py::test_that_is_skipped"}


@pytest.mark.once
def test_a_test_that_fails_twice_fails_the_run_and_the_command_runs_it_again(
    ci: Any, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(project, STEADY)
    outcome = ran(ci, project, [suite(ci, environment={"TEST_DATABASE": "post gres"})])
    assert (outcome.passed, len(outcome.unsteady)) == (2, 1)
    [failure] = outcome.failures
    assert failure.name == "tests/test_steady.py::test_that_fails_always"
    assert failure.command.startswith("TEST_DATABASE='post gres' ")
    again = subprocess.run(failure.command, shell=True, cwd=project, capture_output=True, text=True)
    assert (again.returncode, "1 failed" in again.stdout) == (1, True)
    again = subprocess.run(outcome.unsteady[0].command, shell=True, cwd=project, capture_output=True, text=True)
    assert (again.returncode, "1 passed" in again.stdout) == (0, True)
    assert ci.running.sum_up(outcome, 1.0, strict=False) == 1
    text, _, names = capsys.readouterr().out.partition("\nfailed\n")
    assert "AssertionError: assert 'SIX' == 'SEVEN'" in text
    assert failure.name in names
    assert failure.command in names


@pytest.mark.once
def test_a_module_that_could_not_be_imported_is_not_run_again(ci: Any, project: Path) -> None:
    """Its tests would count as run, and perhaps those of other modules, which have not been."""
    add(project, {"tests/test_module.py": "import os\nassert 'PYTEST_XDIST_WORKER' not in os.environ\n"})
    outcome = ran(ci, project, [suite(ci)])
    assert "tests/test_module.py" in [failure.name for failure in outcome.failures]


@pytest.mark.once
@pytest.mark.parametrize("text", ["raise SystemError('gone')", "import not_there"])
def test_a_suite_that_cannot_run_fails(ci: Any, project: Path, text: str) -> None:
    add(project, {"conftest.py": text})
    [failure] = ran(ci, project, [suite(ci)]).failures
    assert ("gone" in failure.text) or ("not_there" in failure.text)


def test_an_environment_that_cannot_be_made_fails_its_suite(
    ci: Any, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = ci.stages.command(sys.executable, "-c", "import sys; sys.exit('no such release')")
    outcome = ran(ci, project, [suite(ci, preparing=(prepare,))])
    assert [failure.text.strip() for failure in outcome.failures] == ["no such release"]
    ci.running.sum_up(outcome, 1.0, strict=False)
    assert str(prepare) in capsys.readouterr().out


def test_checks_and_lanes_run_side_by_side_and_each_check_that_fails_is_named(ci: Any, project: Path) -> None:
    """Each of the first two ends only once the other has begun, and so do the lanes."""
    commands = {
        "one": ci.stages.command(sys.executable, "-c", MEET, "one", "two"),
        "two": ci.stages.command(sys.executable, "-c", MEET, "two", "one"),
        "bad": ci.stages.command(sys.executable, "-c", "import sys; sys.exit('wrong in line 7')"),
    }
    lanes = [
        [ci.stages.Checks(name, {name: ci.stages.command(sys.executable, "-c", MEET, name, other)})]
        for name, other in (("three", "four"), ("four", "three"))
    ]
    outcome = ran(ci, project, [ci.stages.Checks("code", commands)], *lanes)
    assert outcome.passed == 4
    [failure] = outcome.failures
    assert (failure.name, failure.text.strip()) == ("bad", "wrong in line 7")


@pytest.mark.parametrize(
    ("strict", "code", "said"), [(True, 1, "0 failed, 1 left out that must run in"), (False, 0, "0 failed in")]
)
def test_what_must_run_and_does_not_is_no_failed_test_but_fails_the_run(
    ci: Any, capsys: pytest.CaptureFixture[str], strict: bool, code: int, said: str
) -> None:
    outcome = ci.running.Outcome()
    outcome.left_out = ["a.py::test_b (skipped in every run)"]
    assert ci.running.sum_up(outcome, 1.0, strict=strict) == code
    assert said in capsys.readouterr().out


def test_each_python_and_each_django_is_seen_in_full_once(ci: Any) -> None:
    pairs = ci.plan.pairs_of(["3.11", "3.12", "3.13"])
    assert pairs == [
        ("3.11", "5.2"),
        ("3.12", "5.2"),
        ("3.12", "6.0"),
        ("3.12", "6.1"),
        ("3.13", "5.2"),
        ("3.13", "6.1"),
    ]
    assert ci.plan.seen_in_full(pairs, "3.11") == {("3.11", "5.2"), ("3.12", "6.0"), ("3.13", "6.1")}
    assert ci.plan.seen_in_full(pairs[:1], "3.11") == set(pairs[:1])


def test_of_the_rows_of_each_test_so_many_are_drawn_by_the_seed() -> None:
    from tests.rows import undrawn

    names = [*(f"a.py::test_many[{row}]" for row in "abcdef"), "a.py::test_two[a]", "a.py::test_two[b]", "b.py::test"]
    left_out = undrawn(names, 2, 7)
    assert len(left_out) == 4
    assert {name.partition("[")[0] for name in left_out} == {"a.py::test_many"}
    assert undrawn(names[::-1], 2, 7) == left_out, "the same seed draws the same, in whatever order tests come"
    drawn = {name for seed in range(100) for name in names if name not in undrawn(names, 2, seed)}
    assert drawn == set(names), "each runs now and then"


def test_rows_that_were_not_drawn_are_asked_elsewhere(ci: Any) -> None:
    """What another pair asks in part, a run with the Python of .venv asks in full, also what only SQLite can hold."""
    assert "ROWS" not in ci.plan.whole_suite(long=False).environment
    assert "ROWS" not in ci.selections.BRIEFLY
    asked_twice = ci.selections.asked_twice_elsewhere()
    assert "tests/rules/test_versions.py" in asked_twice
    assert "tests/rules/test_compiler.py" not in asked_twice


def test_the_lowest_versions_are_those_of_all_extras_but_celery(ci: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _sync, resolve, _install = map(str, ci.plan.lowest_versions("uv").preparing)
    assert "--resolution=lowest-direct" in resolve
    assert {*re.findall(r"--extra=(\w+)", resolve), "celery"} == set(project["optional-dependencies"])


@pytest.mark.once
def test_the_unit_tests_need_neither_django_nor_redis() -> None:
    """Nor do they import them, so that `pytest tests/unit` starts at once.

    Here they are only collected, and those of one file run: `tests/unit/conftest.py` looks again when all have run, in
    the stage that runs them.
    """
    code = """if True:
        import sys, pytest
        passed = pytest.main(["-q", "tests/unit", "--collect-only"]) == pytest.ExitCode.OK
        passed &= pytest.main(["-q", "tests/unit/test_every_algorithm.py"]) == pytest.ExitCode.OK
        unwanted = {"django", "django_redis", "redis", "rest_framework", "celery", "pytest_django"}
        print(passed, unwanted & {name.partition(".")[0] for name in sys.modules})
    """
    environment = {name: value for name, value in os.environ.items() if name != "UNIT_TESTS"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "True set()", done.stdout


def test_the_paths_that_stages_name_are_there(ci: Any) -> None:
    """pytest says nothing of an --ignore that ignores nothing."""
    named = {
        (option.partition("=")[2] or option).partition("::")[0]
        for selection in vars(ci.selections).values()
        if isinstance(selection, tuple)
        for option in selection
        if (option.partition("=")[2] or option).startswith("tests/")
    }
    assert len(named) > 10
    assert {name for name in named if not (ROOT / name).exists()} == set()
    tests = {
        option.partition("=")[2] or option
        for selection in vars(ci.selections).values()
        if isinstance(selection, tuple)
        for option in selection
        if "::" in option
    }
    found = {test: (ROOT / test.partition("::")[0]).read_text() for test in tests}
    assert [
        test for test, text in found.items() if f"def {test.partition('::')[2].partition('[')[0]}(" not in text
    ] == []
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert files >= ci.selections.ON_THE_LATEST


def test_each_recorded_trace_is_counted_somewhere(ci: Any) -> None:
    from tests.usage.test_recount import CHANGES

    counted = {*ci.selections.ON_SQLITE, *ci.selections.ON_POSTGRESQL}
    assert counted == {f"{ci.selections.RECOUNT}[{'-'.join(change)}]" for change in CHANGES}


def test_what_is_declared_is_what_the_readme_says(ci: Any) -> None:
    """Nothing that was not tried: a Python is added here when `make test` has run on it."""
    versions = ci.pythons.classifiers("Programming Language :: Python")
    assert f"Python {versions[0]} to {versions[-1]}" in (ROOT / "README.md").read_text()
