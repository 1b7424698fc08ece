"""Without tables, or without the app in INSTALLED_APPS, limits written in code work, and nothing else is broken."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import OperationalError, connection, transaction
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.decision import Decision
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.engine import Version
from django_ratelimiter.limiter.charges import InlineRule
from django_ratelimiter.models import Rule
from django_ratelimiter.rules import cache, inline, tiers, ttl_cache
from django_ratelimiter.rules.stored import storage, tables

from ..making import failing
from .rows import make_rule

ROOT = Path(__file__).parents[2]


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """No table is found; a test may add names of tables that are."""
    found: set[str] = set()
    monkeypatch.setattr(tables, "_seen", set())
    monkeypatch.setattr(tables, "_logged", False)
    monkeypatch.setattr(
        tables, "_has_table", lambda model, using: f"django_ratelimiter_{model.__name__}".lower() in found
    )
    return found


class Time:
    """Stands in for `time` where it is asked how much of it has passed."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    for module in (ttl_cache, cache):
        monkeypatch.setattr(module, "time", time)
    return time


def extra(quota: int = 2) -> InlineRule:
    return InlineRule(inline.rule_of("code:coded", quota, 86_400, "id", algorithm="token_bucket"), "id:1")


def ask() -> Any:
    return RequestFactory().get("/", REMOTE_ADDR="203.0.113.1")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("missing", "engine")
@pytest.mark.parametrize("engine", ["memory", "redis"], indirect=True)
def test_limits_in_code_are_exact_and_nothing_is_degraded(check: Callable[..., Decision]) -> None:
    decisions = [check(ask(), extra=[extra()]) for _ in range(3)]
    assert [each.allowed for each in decisions] == [True, True, False]
    assert not any(each.degraded for each in decisions)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("missing")
def test_a_version_that_another_database_put_in_force_is_left_alone(
    check: Callable[..., Decision], redis_client: redis.Redis
) -> None:
    get_engine().publish(Version(7, 1_700_000_000_000))
    held = redis_client.get("{rl:0}:version")
    assert held
    decisions = [check(ask(), extra=[extra()]) for _ in range(3)]
    assert [(each.allowed, each.degraded) for each in decisions] == [(True, False), (True, False), (False, False)]
    assert redis_client.get("{rl:0}:version") == held


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("missing")
def test_no_table_is_selected_from(check: Callable[..., Decision]) -> None:
    with CaptureQueriesContext(connection) as queries:
        check(ask(), extra=[extra()])
        tiers.is_known_api_key("no key")
        storage.enforcement_enabled()
    assert not queries.captured_queries


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("missing")
def test_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        limiter.check(ask(), extra=[extra(9)])
        tables.forget()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "The database 'default' has no table django_ratelimiter_" in record.message
    assert "Run `manage.py migrate`." in record.message


@pytest.mark.django_db(transaction=True)
def test_tables_made_by_another_process_are_found_within_seconds(
    missing: set[str], time: Time, check: Callable[..., Decision]
) -> None:
    assert check(ask()).allowed
    with cache.editing():
        make_rule(quota=1)
    cache._state = cache._State()  # as in another process, which has not been told
    time.seconds += 5
    assert [check(ask()).allowed for _ in range(3)] == [True] * 3
    missing |= set(connection.introspection.table_names())
    time.seconds += 1.1
    assert [check(ask()).allowed for _ in range(3)] == [True, False, False]


@pytest.mark.django_db(transaction=True)
def test_migrating_in_this_process_is_noticed_at_once(missing: set[str], time: Time) -> None:
    assert cache.current_rules() is storage.NO_TABLES
    missing |= set(connection.introspection.table_names())
    assert cache.current_rules() is storage.NO_TABLES
    cache._on_migration()
    assert cache.current_rules() is not storage.NO_TABLES


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("missing")
def test_a_database_that_is_down_is_not_one_without_tables(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "_has_table", failing(OperationalError("could not connect")))
    get_engine().publish(Version(7, 1_700_000_000_000))
    decision = limiter.check(ask(), extra=[extra()])
    assert decision.degraded  # its rules may be stale, and the failure policies decide
    assert "The rules cannot be read" in caplog.text
    assert "manage.py migrate" not in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_broken_transaction_keeps_the_rules_from_nobody() -> None:
    before = cache.current_rules()
    Rule.objects.create(slug="all", name="all")
    with transaction.atomic():
        transaction.set_rollback(True)
        assert cache.current_rules() is before
    assert cache.current_rules() is not before


@pytest.mark.django_db
@pytest.mark.usefixtures("missing")
def test_an_open_transaction_goes_on(check: Callable[..., Decision]) -> None:
    with transaction.atomic():
        assert check(ask(), extra=[extra()]).allowed
        assert Rule.objects.count() == 0


def test_a_view_that_is_limited_in_code_needs_no_database(missing: set[str]) -> None:
    view = ratelimit(key="ip", rate="1/m", block=False)(lambda request: request.limited)
    assert [view(ask()) for _ in range(2)] == [False, True]


#: Limits in code, in a project that has not migrated. The view asks the database in the request's own transaction.
PROJECT = """
import os, sys
from django.conf import settings
settings.configure(
    SECRET_KEY="only for this test", ALLOWED_HOSTS=["*"], ROOT_URLCONF="__main__", USE_TZ=True, DEBUG=True,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_ratelimiter"],
    DATABASES={"default": {**__import__("json").loads(os.environ["ITS_DATABASE"]), "ATOMIC_REQUESTS": True}},
)
import django
django.setup()
import time
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django_ratelimiter.decorators import ratelimit


@ratelimit(key="ip", rate="3/m")
def hello(request):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return HttpResponse("hello")


urlpatterns = [path("hello/", hello), path("free/", ratelimit("free")(lambda request: HttpResponse("free")))]
if sys.argv[1:] == ["other"]:
    call_command("migrate", verbosity=0)
    from django_ratelimiter.models import Rule, RuleLimit
    rule = Rule.objects.create(slug="free", name="free", scope="free", mode="enforce")
    RuleLimit.objects.create(rule=rule, quota=1, window_seconds=3600, algorithm="token_bucket")
    sys.exit()
client = Client()
print([client.get("/hello/").status_code for _ in range(5)])
print([client.get("/free/").status_code for _ in range(3)])
import subprocess
subprocess.run([sys.executable, __file__, "other"], check=True)
really = time.monotonic
time.monotonic = lambda: really() + 2
print([client.get("/free/").status_code for _ in range(3)])
"""


@pytest.fixture
def unmigrated(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """An empty database of the kind that the tests run on, as in DATABASES."""
    if connection.vendor != "postgresql":
        yield {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "unmigrated.sqlite3")}
        return
    name = f"unmigrated_{os.getpid()}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield {key: connection.settings_dict[key] for key in ("ENGINE", "USER", "HOST", "PORT", "PASSWORD")} | {
        "NAME": name
    }
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_before_and_after_another_process_migrates(tmp_path: Path, unmigrated: dict[str, Any]) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    environment = os.environ | {"ITS_DATABASE": json.dumps(unmigrated), "PYTHONPATH": str(ROOT)}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [sys.executable, tmp_path / "project.py"], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["[200, 200, 200, 403, 403]", "[200, 200, 200]", "[200, 403, 403]"], done.stderr
    assert done.stderr.count("manage.py migrate") == 1
    assert "cannot be read" not in done.stderr
