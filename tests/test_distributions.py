"""Another distribution, `django-ratelimiter`, installs a package of our name: what a site says after each order."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from zipfile import ZipFile

import asgiref
import django
import django_redis
import hiredis
import pytest
import redis
import sqlparse

from django_ratelimiter.values.distributions import OURS, REMEDY, THEIRS

from .installing import ROOT, UV, create_environment, environment, missing

pytestmark = [pytest.mark.once, pytest.mark.skipif(missing() != "", reason=missing())]

#: The files of theirs that ours has as well, and one that it has not.
FILES = {"__init__.py": "from django_ratelimiter.storage import CacheStorage", "storage.py": "class CacheStorage: pass"}
FILES |= {"middleware.py": "", "py.typed": ""}
SETTINGS = """
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimiter"]
MIDDLEWARE = ["django_ratelimiter.middleware.RateLimitMiddleware"]
DEBUG = True
"""


class Site:
    """A project in an environment of its own, in which the two wheels are installed. What else it needs is linked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        create_environment(folder / ".venv")
        for package in (asgiref, django, django_redis, hiredis, redis, sqlparse):
            (folder / package.__name__).symlink_to(Path(package.__file__).parent)
        (folder / "its_settings.py").write_text(SETTINGS)
        self.wheels = {OURS: str(next(folder.parent.glob("django_tiered*.whl"))), THEIRS: str(stand_in(folder))}

    def uv(self, command: str, *names: str) -> None:
        python = self.folder / ".venv/bin/python"
        given = ("pip", command, "--quiet", "--python", python, *(() if command == "uninstall" else ("--no-deps",)))
        subprocess.run((str(UV), *given, *names), check=True, env=environment())

    def install(self, name: str) -> None:
        self.uv("install", self.wheels[name])

    def check(self) -> str:
        """Return what `manage.py check` prints; "" = it finds nothing."""
        command = (self.folder / ".venv/bin/python", "-m", "django", "check", "--settings=its_settings")
        done = subprocess.run(
            command, cwd=self.folder, env=environment() | {"PATH": os.defpath}, capture_output=True, text=True
        )
        return "" if done.returncode == 0 else done.stderr


def stand_in(folder: Path) -> Path:
    """Make a wheel like theirs."""
    wheel, records = folder / "django_ratelimiter-0.2.2-py3-none-any.whl", "django_ratelimiter-0.2.2.dist-info"
    metadata = {"METADATA": f"Metadata-Version: 2.1\nName: {THEIRS}\nVersion: 0.2.2\n"}
    metadata["WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {f"django_ratelimiter/{name}": text for name, text in FILES.items()}
    files |= {f"{records}/{name}": text for name, text in metadata.items()}
    files[f"{records}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{records}/RECORD"))
    with ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    subprocess.run((str(UV), "build", "--quiet", "--wheel", "--out-dir", folder, ROOT), check=True)
    return folder


@pytest.fixture
def site(built: Path, tmp_path: Path) -> Site:
    (built / tmp_path.name).mkdir()
    return Site(built / tmp_path.name)


def test_site_is_told_how_to_repair_what_theirs_replaced_and_deleted(site: Site) -> None:
    site.install(OURS)
    assert site.check() == ""
    site.install(THEIRS)
    replaced = site.check()
    assert f"ImproperlyConfigured: Files of django_ratelimiter are replaced or deleted: {THEIRS} installs" in replaced
    site.uv("uninstall", THEIRS)
    assert not (next(site.folder.glob(".venv/lib/*/site-packages")) / "django_ratelimiter/__init__.py").exists()
    deleted = site.check()
    assert deleted.splitlines()[-1] == replaced.splitlines()[-1]
    assert deleted.rstrip().endswith(REMEDY)
    site.uv("uninstall", OURS)
    site.install(OURS)
    assert site.check() == ""


def test_check_names_theirs_where_ours_was_installed_last(site: Site) -> None:
    site.install(THEIRS)
    site.install(OURS)
    found = site.check()
    assert (found.count("(django_ratelimiter.E"), "E016" in found, THEIRS in found) == (1, True, True)
    assert REMEDY in found
    site.uv("uninstall", THEIRS)
    assert f"{THEIRS} installs the same package. {REMEDY}" in site.check()
