"""The releases of Python and Django that the package is tested on, and how a Python is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from glob import escape, glob
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def classifiers(prefix: str) -> list[str]:
    """Return the releases in pyproject.toml, oldest first: `3.11` of `Programming Language :: Python`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.findall(rf"^{prefix} :: (\d+\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])


def supported_djangos(python: str) -> list[str]:
    """Return the releases of Django for a Python, oldest first; the latest is that in uv.lock."""
    return [release for release in classifiers("Framework :: Django") if release == "5.2" or python != "3.11"]


def find_python(version: str, uv: str, *, install: bool) -> Path | None:
    """Return an interpreter of this version. install: let uv install one if there is none."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, _candidates(version, uv, install=install)):
        answer = subprocess.run((candidate, "-c", ask), capture_output=True, text=True)
        if answer.stdout.strip() == version:
            return Path(candidate)
    return None


def _candidates(version: str, uv: str, *, install: bool) -> Iterator[str | None]:
    def managed() -> str:
        find = (uv, "python", "find", "--managed-python", "--no-project", version)
        return subprocess.run(find, capture_output=True, text=True).stdout.strip()

    yield sys.executable
    yield shutil.which(f"python{version}")
    pyenv = os.environ.get("PYENV_ROOT") or str(Path.home() / ".pyenv")
    # Unlike Path.glob, it passes over a folder that may not be read, such as another user's.
    yield from sorted(glob(f"{escape(pyenv)}/versions/{version}.*/bin/python"), reverse=True)
    yield managed()
    if install:
        subprocess.run((uv, "python", "install", "--quiet", version), capture_output=True)
        yield managed()


def pair_of(python: Path) -> str:
    """Return the Python and the Django of an environment, as it reports them."""
    ask = "import platform, django; print(f'Python {platform.python_version()}, Django {django.__version__}')"
    return subprocess.run((python, "-c", ask), capture_output=True, text=True).stdout.strip()
