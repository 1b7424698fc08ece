"""The wheel and the source distribution hold what they should; `test_walk.py` installs the package."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from .installing import UV, create_environment, missing

ROOT = Path(__file__).parent.parent
#: For those who work on the package, not for those who install it.
LEFT_OUT = "django_ratelimiter/README.md"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as pip builds it."""
    if missing():
        pytest.skip(missing())
    folder = tmp_path_factory.mktemp("wheel")
    create_environment(folder / ".venv", "--seed")
    pip = (folder / ".venv/bin/pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    subprocess.run(pip, check=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.mark.once
def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "django_ratelimiter"
    files = {str(file.relative_to(ROOT)) for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    held = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert LEFT_OUT in files
    assert held == files - {LEFT_OUT}
    assert {Path(name).suffix for name in held} >= {".py", ".typed", ".lua", ".html", ".css", ".js", ".po", ".mo"}
    assert any("/migrations/0001" in name for name in held)


@pytest.mark.once
@pytest.mark.skipif(missing() != "", reason=missing())
def test_the_sdist_holds_all_files_and_runs_its_tests(tmp_path: Path) -> None:
    subprocess.run((str(UV), "build", "--quiet", "--sdist", "--out-dir", tmp_path, ROOT), check=True)
    [built] = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        archive.extractall(tmp_path, filter="data")
    [unpacked] = (path for path in tmp_path.iterdir() if path.is_dir())
    held = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*")}
    needed = {
        "Makefile",
        "tox.toml",
        "uv.lock",
        "pyproject.toml",
        "hatch_build.py",
        ".ci/run",
        ".ci/tox",
        "docs/conf.py",
    }
    needed |= {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("*.py")}
    assert sorted({*needed, "example_project/urls.py"} - held) == []
    (unpacked / ".cache/uv/bin").mkdir(parents=True)
    (unpacked / ".cache/uv/bin/uv").symlink_to(Path(str(UV)).absolute())  # else pip would download it
    ours = ("PYTEST_", "TOX_", "UV_PROJECT")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    tests = ("make", "test", "ARGS=unit -- tests/unit/test_breaker.py")
    done = subprocess.run(tests, cwd=unpacked, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
