"""Another distribution, `django-ratelimiter`, installs a package of our name: what a site says after each order."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import asgiref
import cryptography
import django
import django_redis
import hiredis
import pytest
import redis
import sqlparse

from django_ratelimiter.values.distributions import OURS, REMEDY, THEIRS

from .installing import ROOT, UV, create_environment, environment, missing

pytestmark = [pytest.mark.once, pytest.mark.skipif(missing() != "", reason=missing())]

#: Their wheel: files that ours has as well, and one that it has not.
WHEEL = {
    "django_ratelimiter/__init__.py": "from django_ratelimiter.storage import CacheStorage",
    "django_ratelimiter/middleware.py": "",
    "django_ratelimiter/storage.py": "class CacheStorage: pass",
    "django_ratelimiter-0.2.2.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {THEIRS}\nVersion: 0.2.2\n",
    "django_ratelimiter-0.2.2.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
WHEEL["django_ratelimiter-0.2.2.dist-info/RECORD"] = "".join(f"{name},,\n" for name in WHEEL)
SETTINGS = """
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimiter"]
DEBUG = True
"""


@pytest.fixture
def uv(tmp_path: Path) -> Callable[..., str]:
    """Install or uninstall distributions in an environment, then return why `manage.py check` fails; "" = it passes."""
    create_environment(tmp_path / ".venv")
    for package in (asgiref, cryptography, django, django_redis, hiredis, redis, sqlparse):
        (tmp_path / package.__name__).symlink_to(Path(package.__file__).parent)
    backend = Path(str(getattr(find_spec("_cffi_backend"), "origin", "")))  # of cryptography
    (tmp_path / backend.name).symlink_to(backend)
    (tmp_path / "its_settings.py").write_text(SETTINGS)
    subprocess.run((str(UV), "build", "--quiet", "--wheel", "--out-dir", tmp_path, ROOT), check=True)
    theirs = tmp_path / "django_ratelimiter-0.2.2-py3-none-any.whl"
    with ZipFile(theirs, "w") as archive:
        for name, text in WHEEL.items():
            archive.writestr(name, text)
    wheels = {THEIRS: theirs, OURS: next(tmp_path.glob("django_tiered*.whl"))}
    python, variables = tmp_path / ".venv/bin/python", environment() | {"PATH": os.defpath}

    def run(command: str, *names: str) -> str:
        what = names if command == "uninstall" else ("--no-deps", *(wheels[name] for name in names))
        subprocess.run((str(UV), "pip", command, "--quiet", "--python", python, *what), check=True, env=variables)
        check = (python, "-m", "django", "check", "--settings=its_settings")
        done = subprocess.run(check, cwd=tmp_path, env=variables, capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr.rstrip()

    return run


def test_site_is_told_how_to_repair_what_theirs_replaced_and_deleted(uv: Callable[..., str]) -> None:
    assert uv("install", OURS) == ""
    replaced = uv("install", THEIRS)
    deleted = uv("uninstall", THEIRS)
    [error] = {text.splitlines()[-1] for text in (replaced, deleted)}
    assert error.partition(": ")[0] == "django.core.exceptions.ImproperlyConfigured"
    assert error.endswith(f"replaced or deleted: {THEIRS} installs the same package. {REMEDY}")
    assert "No module named 'django_ratelimiter'" in uv("uninstall", OURS)
    assert uv("install", OURS) == ""


def test_check_names_theirs_where_ours_was_installed_last(uv: Callable[..., str]) -> None:
    uv("install", THEIRS)
    found = uv("install", OURS)
    assert (found.count("(django_ratelimiter.E"), "E014" in found, REMEDY in found) == (1, True, True)
    assert f"{THEIRS} installs files in the package" in found
    assert uv("uninstall", THEIRS).endswith(f"{THEIRS} installs the same package. {REMEDY}")
