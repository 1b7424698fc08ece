"""The own tests of REST framework's throttles and of django-ratelimit, run with ours: only their imports are changed.

Those of the framework run in memory, the others on Redis, and each of them begins without counts.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import rest_framework

ROOT = Path(__file__).parent.parent.parent

#: They expect that a request which one throttle rejects is nevertheless counted by the other throttle of its view.
#: Here it spends nothing of the other.
DRF_DIFFERS = {"test_request_throttling_multiple_throttles", "test_throttle_rate_change_negative"}

#: Each is justified in docs/howto/come-from.md, which names them.
RATELIMIT_DIFFERS = {
    "test_bad_cache",
    "test_limit_on_cache_connection_error",
    "test_fail_open_setting",
    "test_is_ratelimited_cache_connection_error_with_increment",
    "test_is_ratelimited_cache_connection_error_with_increment_redis",
    "test_cache_timeout",
    "test_no_key",
}

ON_REDIS = """
CACHES = {"default": CACHES["ratelimit"]}  # what these tests empty is where we count
CACHES["default"]["OPTIONS"] = {"SOCKET_CONNECT_TIMEOUT": 60, "SOCKET_TIMEOUT": 60}
RATELIMITER = {"CACHE_ALIAS": "default", "CLOCK": "client", "DEADLINE_MS": 60_000}
"""

IN_MEMORY = """
CACHES = {"default": CACHES["default"]}
RATELIMITER = {}
"""

DRF_SETTINGS = """
from tests.settings import *

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""

#: Without our app: its tables are not needed for rates in code.
RATELIMIT_SETTINGS = """
from tests.settings import CACHES, SECRET_KEY

USE_TZ = True
INSTALLED_APPS = []
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""

#: Some of them do not call `cache.clear()`, and all of them shall begin without counts. Time stands still: they expect
#: a request to be over its rate, which it is only as long as the window has not passed.
CONFTEST = """
import time

import pytest

@pytest.fixture(autouse=True)
def _without_counts():
    from django_ratelimiter.testing import clear_counts

    clear_counts()

@pytest.fixture(autouse=True)
def _at_one_moment(monkeypatch):
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
"""


def source(name: str, folder: Path) -> tarfile.TarFile:
    """The source of a package as uv.lock names it, which holds its tests. It is downloaded once."""
    locked = next(each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if each["name"] == name)
    archive = ROOT / ".cache" / Path(locked["sdist"]["url"]).name
    if not archive.exists():
        download(folder, name, locked["version"])
        archive.parent.mkdir(exist_ok=True)
        (folder / archive.name).rename(archive)
    assert f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}" == locked["sdist"]["hash"]
    return tarfile.open(archive)


def download(folder: Path, name: str, version: str) -> None:
    """Have pip put the source of a package there. The test is skipped if it cannot."""
    python = ROOT / ".cache/uv/bin/python"  # `make` has put pip there; another takes three seconds
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv/bin/python"
    pip = (python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name)
    done = subprocess.run((*pip, "--dest", folder, f"{name}=={version}"), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip could not download {name} {version}: {done.stderr.strip()[-200:]}")


def outcomes(folder: Path, tests: str, settings: str) -> dict[str, bool]:
    """Run a file of tests; whether each failed, by name."""
    (folder / "test_theirs.py").write_text(tests)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "its_settings.py").write_text(settings)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT} .\nDJANGO_SETTINGS_MODULE = its_settings\n")
    plugins = ("-p", "pytest_django.plugin", "-p", "django_ratelimiter.pytest_plugin")
    command = (sys.executable, "-m", "pytest", "-q", *plugins, "--no-migrations", "--junitxml=report.xml")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=outside | only, capture_output=True, text=True)
    print(done.stdout)
    return {
        test.attrib["name"]: bool({"failure", "error"} & {result.tag for result in test})
        for test in ElementTree.parse(folder / "report.xml").iter("testcase")
    }


def failed(found: dict[str, bool]) -> set[str]:
    return {name for name, has_failed in found.items() if has_failed}


@pytest.mark.once
def test_but_for_two_of_them_they_pass(tmp_path: Path) -> None:
    name = f"djangorestframework-{rest_framework.VERSION}/tests/test_throttling.py"
    member = source("djangorestframework", tmp_path).extractfile(name)
    assert member is not None
    theirs = member.read().decode()
    assert theirs.count("from rest_framework.throttling import") == 1
    ours = theirs.replace("from rest_framework.throttling import", "from django_ratelimiter.throttling import")
    found = outcomes(tmp_path, ours, DRF_SETTINGS + IN_MEMORY)
    assert len(found) >= 29
    assert failed(found) == DRF_DIFFERS


@pytest.mark.once
def test_those_of_django_ratelimit_pass_but_for_what_the_docs_name(tmp_path: Path) -> None:
    archive = source("django-ratelimit", tmp_path)
    [path] = [name for name in archive.getnames() if name.endswith("/django_ratelimit/tests.py")]
    member = archive.extractfile(path)
    assert member is not None
    theirs = member.read().decode()
    ours = theirs.replace("django_ratelimit.tests", "test_theirs")
    ours = re.sub(r"\bdjango_ratelimit\b", "django_ratelimiter", ours)
    found = outcomes(tmp_path, ours, RATELIMIT_SETTINGS + ON_REDIS)
    assert len(found) >= 50
    assert failed(found) == RATELIMIT_DIFFERS


def test_the_docs_name_each_difference() -> None:
    page = (ROOT / "docs/howto/come-from.md").read_text("utf-8")
    assert set(re.findall(r"`(test_\w+)`", page)) == RATELIMIT_DIFFERS | DRF_DIFFERS


def test_each_page_that_says_to_change_imports_leads_to_what_then_differs() -> None:
    pages = {path.name: path.read_text("utf-8") for path in (ROOT / "docs/howto").glob("*.md")}
    differs = pages["come-from.md"]
    told = {name for name, text in pages.items() if re.search(r"[Cc]hange (the|their)\s(name|imports?)\b", text)}
    assert told >= {"come-from.md", "rest-framework.md"}
    assert {name for name in told if "(come-from.md" not in pages[name]} == {"come-from.md"}
    for words in ("slide", "rejected requests", "anonymous users", "500/month"):
        assert words in differs.partition("## ")[0]
