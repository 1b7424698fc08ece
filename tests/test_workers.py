"""Workers: they share the tests of a large folder, and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workers import MANY_FILES, SLOW, first_alone, is_shared

ROOT = Path(__file__).parent.parent
TEST = "import os\ndef test_it(): print('ran in', os.environ.get('PYTEST_XDIST_WORKER', 'one process'))\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A large folder of tests and a small one."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    for folder, count in (("large", MANY_FILES), ("small", MANY_FILES - 1)):
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / f"test_{folder}_{number}.py").write_text(TEST)
    return tmp_path


@pytest.fixture
def configured(project: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What pytest was told: `configured("large", xdist=True, **options)`."""
    monkeypatch.setattr(sys, "gettrace", lambda: None)  # under a debugger the tests of this file pass as well

    def configure(*arguments: str, xdist: bool = True, **options: Any) -> Any:
        option = SimpleNamespace(**{"numprocesses": None, "tx": [], "capture": "fd", "keyword": "", **options})
        plugins = SimpleNamespace(hasplugin=lambda name: xdist and name == "xdist")
        folder = SimpleNamespace(dir=project)
        return SimpleNamespace(option=option, pluginmanager=plugins, invocation_params=folder, args=[*arguments])

    return configure


@pytest.mark.parametrize("arguments", [["large"], ["small", "large"], ["."], ["large/../large"]], ids=str)
def test_a_large_folder_is_shared(configured: Any, arguments: list[str]) -> None:
    assert is_shared(configured(*arguments))


def test_slow_folders_are_shared_however_small(configured: Any) -> None:
    assert is_shared(configured(str(ROOT / "tests/outages")))
    assert all(folder.is_dir() for folder in SLOW)
    assert not is_shared(configured(str(ROOT / "tests/outages/test_faults.py")))


@pytest.mark.parametrize("argument", ["small", "large/test_large_0.py", "large/test_large_0.py::test_it", "gone"])
def test_files_tests_and_small_folders_are_not(configured: Any, argument: str) -> None:
    assert not is_shared(configured(argument))


@pytest.mark.parametrize(
    "options",
    [
        *({"numprocesses": 0}, {"numprocesses": 2}, {"tx": ["popen"]}, {"xdist": False}),
        *({"usepdb": True}, {"capture": "no"}, {"keyword": "large"}, {"lf": True}, {"collectonly": True}),
    ],
    ids=str,
)
def test_nor_is_what_somebody_decides_or_looks_into(configured: Any, options: dict[str, Any]) -> None:
    assert not is_shared(configured("large", **options))


def test_nor_does_a_worker_have_workers(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert not is_shared(configured("large"))


def test_nor_what_a_debugger_follows(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    assert not is_shared(configured("large"))


def test_whoever_comes_first_compiles_and_the_others_wait_and_then_begin_together(tmp_path: Path) -> None:
    """Two at once would do the same work. That both others are in at the same time is what lets them end."""
    events: list[str] = []
    together = threading.Barrier(2, timeout=60)

    def other() -> None:
        with first_alone(tmp_path / "lock"):
            events.append("other")
            together.wait()

    others = [threading.Thread(target=other) for _ in range(2)]
    with first_alone(tmp_path / "lock"):
        for thread in others:
            thread.start()
        others[0].join(0.05)
        events.append("first")
    for thread in others:
        thread.join()
    assert events[0] == "first"
    assert len(events) == 3


@pytest.mark.once
def test_pytest_does_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:  # which traces as a debugger does
        monkeypatch.delenv(name)
    (project / "pytest.ini").write_text("[pytest]\naddopts = -p no:django -p no:django_ratelimiter -p tests.workers\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rP", "-x", "large"], cwd=project, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran_in = {line.removeprefix("ran in ") for line in done.stdout.splitlines() if line.startswith("ran in ")}
    assert {"gw0", "gw1"} <= ran_in
