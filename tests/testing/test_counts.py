"""Users' tests begin with fresh counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from django.http import HttpRequest
from django.test import RequestFactory

from django_ratelimiter.backend import get_engine
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import Charge, Limit, Version
from django_ratelimiter.limiter import fallback
from django_ratelimiter.testing import clear_counts, override_rules

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
    assert [fallback._local.check([CHARGE], 1.0)[0].allowed for _ in range(2)] == [True, False]
    clear_counts()
    assert fallback._local.check([CHARGE], 1.0)[0].allowed


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

NO_DJANGO = "def test_one():\n    import sys\n    assert 'django' not in sys.modules\n"


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
