"""`make test`: what fails, fails the run; what is named is there; each Python and Django is seen."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [path.stem for path in (ROOT / ".ci").glob("*.py")]

#: A suite with a test of each kind. To load all plugins took longer than the tests do.
PROJECT = {
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
UNSTEADY = "tests/test_some.py::TestOfAClass::test_that_fails_beside_others[a [b] 'c']"

Run = Callable[..., Any]


@pytest.fixture
def ci() -> Iterator[Any]:
    """The modules of `.ci`, which is no package."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(ROOT / ".ci"))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def run(ci: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the suite of a small project, with more files and options of the suite: `run(files, **options)`."""
    for module in (ci.running, ci.stages):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)  # it is not part of the run that we are in

    def run_suite(files: dict[str, str] | None = None, **options: Any) -> Any:
        for name, text in (PROJECT | (files or {})).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        suite = ci.stages.Suite("tests: here", Path(sys.executable), ("tests",), workers=2, **options)
        outcome = ci.running.Outcome()
        ci.running.Runner(outcome, tmp_path / "logs").run([suite])
        return outcome

    return run_suite


@pytest.mark.once
def test_a_test_that_fails_beside_others_and_passes_alone_is_named_and_passed(
    ci: Any, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run()
    assert (outcome.passed, outcome.failures) == (2, [])
    assert [failure.name for failure in outcome.unsteady] == [UNSTEADY]
    assert len(set((tmp_path / "drawn").read_text().split())) == 1, "asked again with the same seed"
    assert ci.running.sum_up(outcome, 65.0, strict=True) == 0
    before, _, after = capsys.readouterr().out.partition("\nunsteady: failed beside others, passed alone\n")
    assert "starved of time" in before
    assert UNSTEADY in after
    assert after.splitlines()[-1] == "2 passed (1 unsteady), 0 failed in 1:05"
    assert outcome.skipped == {"tests/test_some.py::test_that_is_skipped"}


@pytest.mark.once
def test_a_test_that_fails_twice_fails_the_run_and_the_command_runs_it_again(
    ci: Any, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steady = {"tests/test_steady.py": "def test_that_fails_always(): assert 'SIX' == 'SEVEN'\n"}
    outcome = run(steady, environment={"TEST_DATABASE": "post gres"})
    assert (outcome.passed, len(outcome.unsteady)) == (2, 1)
    [failure] = outcome.failures
    assert failure.name == "tests/test_steady.py::test_that_fails_always"
    assert failure.command.startswith("TEST_DATABASE='post gres' ")
    for command, code in ((failure.command, 1), (outcome.unsteady[0].command, 0)):
        assert subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True).returncode == code
    assert ci.running.sum_up(outcome, 1.0, strict=False) == 1
    text, _, names = capsys.readouterr().out.partition("\nfailed\n")
    assert "AssertionError: assert 'SIX' == 'SEVEN'" in text
    assert failure.name in names
    assert failure.command in names


@pytest.mark.once
@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("conftest.py", "raise SystemError('gone')", "gone"),
        # Run again, its tests would count as run, and perhaps those of other modules, which have not been.
        ("tests/test_module.py", "import os\nassert 'PYTEST_XDIST_WORKER' not in os.environ\n", "in os.environ"),
    ],
)
def test_what_cannot_be_imported_fails_the_run(run: Run, file: str, text: str, said: str) -> None:
    assert any(said in failure.text for failure in run({file: text}).failures)


def test_an_environment_that_cannot_be_made_fails_its_suite(ci: Any, run: Run) -> None:
    prepare = ci.stages.command(sys.executable, "-c", "import sys; sys.exit('no such release')")
    assert [failure.text.strip() for failure in run(preparing=(prepare,)).failures] == ["no such release"]


def test_what_must_run_and_does_not_fails_a_strict_run(ci: Any, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = ci.running.Outcome(left_out=["a.py::test_b (skipped in every run)"])
    assert [ci.running.sum_up(outcome, 1.0, strict=strict) for strict in (True, False)] == [1, 0]
    assert "0 failed, 1 left out that must run in" in capsys.readouterr().out


def test_each_python_and_each_django_is_seen_in_full_once(ci: Any) -> None:
    pairs = ci.plan.pairs_of(["3.11", "3.12", "3.13"])
    assert {django for python, django in pairs if python == "3.12"} == {"5.2", "6.0", "6.1"}
    assert ci.plan.seen_in_full(pairs, "3.11") == {("3.11", "5.2"), ("3.12", "6.0"), ("3.13", "6.1")}
    assert ci.plan.seen_in_full(pairs[:1], "3.11") == set(pairs[:1])


def test_rows_that_were_not_drawn_are_asked_elsewhere(ci: Any) -> None:
    """What another pair asks in part, a run with the Python of .venv asks in full, also what only SQLite can hold."""
    assert "ROWS" not in ci.plan.whole_suite(long=False).environment | ci.selections.BRIEFLY
    asked_twice = ci.selections.asked_twice_elsewhere()
    assert "tests/rules/test_versions.py" in asked_twice
    assert "tests/rules/test_compiler.py" not in asked_twice


def test_each_test_in_a_browser_runs_on_the_latest_django(ci: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run nowhere else, so nobody would notice; only the one that opens each page runs on .venv's Django too."""
    monkeypatch.setattr(ci.plan, "find_python", lambda *_given, **_options: Path(sys.executable))
    *_, latest = ci.plan.on_other_pairs(ci.running.Outcome(), "uv", strict=False, long=False)
    *_, marks = (after for each, after in zip(latest.options, latest.options[1:], strict=False) if each == "-m")
    assert marks == "not long and not once"
    files = [file for file in (ROOT / "tests/admin").rglob("test_*.py") if "IN_BROWSER" in file.read_text()]
    names = {str(file.relative_to(ROOT)) for file in files}
    assert names - {*ci.selections.ONLY_LATEST} == {"tests/admin/test_csp_browser.py"}
    left = tuple(option.removeprefix("--ignore=") for option in latest.options)
    assert not [name for name in names if name.startswith(left)]
    assert "--ignore=tests/admin/test_csp_browser.py" not in ci.plan.whole_suite(has_latest=True, long=False).options


@pytest.mark.once
def test_the_unit_tests_need_neither_django_nor_redis() -> None:
    """Nor do they import them, so that `pytest tests/unit` starts at once.

    Here they are only collected: `tests/unit/conftest.py` looks again when all have run, in the stage that runs them.
    """
    environment = {name: value for name, value in os.environ.items() if name != "UNIT_TESTS"}
    command = (sys.executable, "-m", "pytest", "-q", "tests/unit", "--collect-only")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_paths_that_stages_name_are_there(ci: Any) -> None:
    """pytest says nothing of an --ignore that ignores nothing."""
    selections = [each for each in vars(ci.selections).values() if isinstance(each, tuple)]
    named = {option.partition("=")[2] or option for selection in selections for option in selection}
    named = {name for name in named if name.startswith("tests/")}
    assert len(named) > 10
    for name in named:
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not test or f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(), name
    assert {path.name for path in (ROOT / "tests").rglob("test_*.py")} >= ci.selections.ON_THE_LATEST


def test_each_recorded_trace_is_counted_somewhere(ci: Any) -> None:
    from tests.usage.test_recount import CHANGES

    counted = {*ci.selections.ON_SQLITE, *ci.selections.ON_POSTGRESQL}
    assert counted == {f"{ci.selections.RECOUNT}[{'-'.join(change)}]" for change in CHANGES}


def test_what_is_declared_is_what_the_readme_says(ci: Any) -> None:
    """Nothing that was not tried: a Python is added here when `make test` has run on it."""
    versions = ci.pythons.classifiers("Programming Language :: Python")
    assert f"Python {versions[0]} to {versions[-1]}" in (ROOT / "README.md").read_text()
