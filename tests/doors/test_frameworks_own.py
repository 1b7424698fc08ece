"""REST framework's own tests of its throttles, run with ours: only their import is changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import rest_framework

ROOT = Path(__file__).parent.parent.parent
NAME = "djangorestframework"

#: They expect that a request which one throttle refuses is nevertheless counted by the other throttle of its view.
#: Here it spends nothing of the other.
DIFFER = {"test_request_throttling_multiple_throttles", "test_throttle_rate_change_negative"}

SETTINGS = """
from tests.settings import *

CACHES = {"default": CACHES["ratelimit"]}  # what these tests empty is where we count
RATELIMITER = {"CACHE_ALIAS": "default"}
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> tarfile.TarFile:
    """The source of the REST framework as uv.lock names it, which holds its tests. It is downloaded once."""
    locked = next(each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if each["name"] == NAME)
    assert locked["version"] == rest_framework.VERSION
    archive = ROOT / ".cache" / Path(locked["sdist"]["url"]).name
    if not archive.exists():
        folder = tmp_path_factory.mktemp("download")
        download(folder, f"{NAME}=={locked['version']}")
        archive.parent.mkdir(exist_ok=True)
        (folder / archive.name).rename(archive)
    assert f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}" == locked["sdist"]["hash"]
    return tarfile.open(archive)


def download(folder: Path, requirement: str) -> None:
    """Have pip put the source of a package there. The test is skipped if it cannot."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = (folder / "venv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", NAME)
    done = subprocess.run((*pip, "--dest", folder, requirement), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip could not download {requirement}: {done.stderr.strip()[-200:]}")


@pytest.mark.once
def test_but_for_two_of_them_they_pass(framework: tarfile.TarFile, tmp_path: Path) -> None:
    member = framework.extractfile(f"{NAME}-{rest_framework.VERSION}/tests/test_throttling.py")
    assert member is not None
    theirs = member.read().decode()
    assert theirs.count("from rest_framework.throttling import") == 1
    ours = theirs.replace("from rest_framework.throttling import", "from django_ratelimiter.throttling import")
    (tmp_path / "test_throttling.py").write_text(ours)
    (tmp_path / "its_settings.py").write_text(SETTINGS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT} .\nDJANGO_SETTINGS_MODULE = its_settings\n")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "pytest_django.plugin", "--junitxml=report.xml")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=outside | only, capture_output=True, text=True)
    outcomes = {
        test.get("name"): bool({"failure", "error"} & {result.tag for result in test})
        for test in ElementTree.parse(tmp_path / "report.xml").iter("testcase")
    }
    assert len(outcomes) >= 29, done.stdout
    assert {name for name, failed in outcomes.items() if failed} == DIFFER, done.stdout
