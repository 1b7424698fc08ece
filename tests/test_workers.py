"""Workers share the tests of a large folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import MANY_FILES

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
