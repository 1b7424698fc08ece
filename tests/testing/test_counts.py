"""Users' tests begin with fresh counts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connections
from django.db.backends.signals import connection_created
from django.http import HttpRequest
from django.test import RequestFactory

from django_ratelimiter import backend
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import Charge, Limit, Version
from django_ratelimiter.limiter import fallback
from django_ratelimiter.testing import clear_counts, override_rules

from ..clusters import ServerWith
from ..engine.redis.test_acl import allowed, rejected

ROOT = Path(__file__).parents[2]
CHARGE = Charge("ann", Limit(1, 60, "sliding_window_log"), usage="hello|")


@pytest.fixture(params=["memory", "redis"])
def way_to_count(request: pytest.FixtureRequest, settings: Any) -> str:
    """The settings name this engine."""
    settings.RATELIMITER = {} if request.param == "memory" else {"CACHE_ALIAS": "ratelimit"}
    return str(request.param)


@pytest.mark.usefixtures("way_to_count")
def test_clearing_drops_counters_and_usage_and_keeps_the_version() -> None:
    get_engine().publish(Version(7, 1))
    assert [get_engine().check([CHARGE], version=Version(7, 1))[0].allowed for _ in range(2)] == [True, False]
    clear_counts()
    engine = get_engine()
    assert engine.take_usage(now_us=2**50) == []
    assert engine.check([CHARGE], version=Version(7, 1))[0].allowed


def test_clearing_deletes_no_key_of_anybody_else(redis_client: redis.Redis) -> None:
    for name in ("rl", "other", "{rl2:0}:version", "{rlx:0}:a"):
        redis_client.set(name, "kept")
    get_engine().check([CHARGE])
    clear_counts()
    assert set(redis_client.keys()) == {b"rl", b"other", b"{rl2:0}:version", b"{rlx:0}:a"}


def test_clearing_forgets_what_was_counted_in_an_outage() -> None:
    assert [fallback.local.check([CHARGE])[0].allowed for _ in range(2)] == [True, False]
    clear_counts()
    assert fallback.local.check([CHARGE])[0].allowed


def test_clearing_within_rules_of_a_test() -> None:
    view = ratelimit(key="ip", rate="1/m", block=False)(lambda request: request.limited)

    def ask() -> HttpRequest:
        return RequestFactory().get("/")

    with override_rules():
        assert [view(ask()), view(ask())] == [False, True]
        clear_counts()
        assert view(ask()) is False


#: What a user would write who comes from django-ratelimit, without `cache.clear()`.
TESTS = """
import pytest
from django.http import HttpResponse
from django.urls import path
from django_ratelimiter.decorators import ratelimit

hello = ratelimit(key="ip", rate="2/m")(lambda request: HttpResponse("hello"))
urlpatterns = [path("", hello)]

@pytest.mark.parametrize("time", range(3))
def test_hello(client, time):
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 403]
"""

NO_DJANGO = """
import sys

def test_one(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("django_ratelimiter")
    assert not {"django", "django_ratelimiter.testing"} & sys.modules.keys()
"""


@pytest.mark.once
def test_a_users_tests_begin_at_zero_and_tests_without_django_need_none(tmp_path: Path) -> None:
    (tmp_path / "its_settings.py").write_text('SECRET_KEY = "x"\nROOT_URLCONF = "test_theirs"\n')
    (tmp_path / "test_theirs.py").write_text(TESTS)
    (tmp_path / "test_no_django.py").write_text(NO_DJANGO)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT} .\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}

    def run(*options: str) -> str:
        command = (sys.executable, "-m", "pytest", "-q", "-W", "error", *options)
        done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert "3 passed" in run("test_theirs.py", "--ds=its_settings")
    assert "1 passed" in run("test_no_django.py", "-p", "no:django")


def test_counts_go_where_the_database_of_the_tests_is(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.RATELIMITER = {"CACHE_ALIAS": "ratelimit"}
    monkeypatch.setattr(backend, "are_tests_running", lambda: True)
    found = []
    for name in ("test_shop_1", "test_shop_2", "file:memorydb_default?mode=memory", str(tmp_path)):
        monkeypatch.setitem(connections.settings["default"], "NAME", name)
        connection_created.send(sender=None, connection=connections["default"])
        found.append(get_engine().engine.namespace)  # type: ignore[attr-defined]
    assert [name.rpartition("-")[0] for name in found[:3]] == [
        *("rl:test_shop_1", "rl:test_shop_2", f"rl:memory-{os.getpid()}"),
    ]
    assert re.fullmatch("rl:[0-9a-f]{16}-[0-9a-f]{8}", found[3])


def test_clearing_needs_no_permission_to_search(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_fresh", "")
    with ServerWith() as server:
        allowed(server)
        place = {"LOCATION": f"redis://limiter:secret@127.0.0.1:{server.port}/0"}
        settings.CACHES = {**settings.CACHES, "ratelimit": {**settings.CACHES["ratelimit"], **place}}
        settings.RATELIMITER = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 60_000}
        for _ in range(2):
            assert [get_engine().check([CHARGE])[0].allowed for _ in range(2)] == [True, False]
            clear_counts()
        assert rejected(server) == {b"scan"}
    settings.RATELIMITER = {}


#: A project whose tests count in Redis, as a site may do beside them.
ITS_SETTINGS = """
import os

SECRET_KEY, ROOT_URLCONF, USE_TZ = "only for this test", "urls", True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimiter"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop", "TEST": {"NAME": "test_shop"}}}
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["ITS_REDIS"]}}
RATELIMITER = {"CACHE_ALIAS": "default", "DEADLINE_MS": 60_000}
"""
ITS_URLS = """
from django.http import HttpResponse
from django.urls import path
from django_ratelimiter.decorators import ratelimit

urlpatterns = [
    path(name, ratelimit(key="ip", rate="2/d", group=name)(lambda request: HttpResponse("hello")))
    for name in ("First", "Second")
]
"""
ITS_TESTS = """
from django.test import TestCase


class FirstTests(TestCase):
    def test_hello(self):
        self.assertEqual([self.client.get("/First").status_code for _ in range(3)], [200, 200, 403])
"""


@pytest.mark.once
def test_tests_share_no_counts_with_a_site_with_another_run_and_with_parallel_workers(
    tmp_path: Path, redis_client: redis.Redis
) -> None:
    for name, text in {"its_settings": ITS_SETTINGS, "urls": ITS_URLS, "test_first": ITS_TESTS}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "test_second.py").write_text(ITS_TESTS.replace("First", "Second"))
    at = redis_client.get_connection_kwargs()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    environment |= {"ITS_REDIS": f"redis://127.0.0.1:{at['port']}/{at['db']}", "PYTHONPATH": str(ROOT)}
    environment["DJANGO_SETTINGS_MODULE"] = "its_settings"
    for workers in ("1", "2"):
        command = (sys.executable, "-m", "django", "test", "--parallel", workers)
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert "Ran 2 tests" in done.stderr, done.stderr
        assert done.returncode == 0, done.stderr
    counted = {name.decode().partition("}")[0].rpartition("-")[0] for name in redis_client.scan_iter()}
    assert "{rl:test_shop" in counted, "they counted in Redis"
    # From Python 3.14 on, workers are not forked, and Django gives each a copy of the database in its memory.
    of_workers = r"{rl:(test_shop_[12]|memory-\d+)"
    assert all(name == "{rl:test_shop" or re.fullmatch(of_workers, name) for name in counted), counted
