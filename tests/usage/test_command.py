"""The two ways in which a collection is started: by Celery and from cron."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec, module_from_spec
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit
from django_ratelimiter.management import output
from django_ratelimiter.models import UsageBucket
from django_ratelimiter.tasks import collect_usage
from django_ratelimiter.usage.collector import collect as collector
from django_ratelimiter.usage.collector.collect import Collected
from tests.making import failing, manage

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _keep_all(settings: Any) -> None:
    """However long ago the tests' requests were made."""
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": dict.fromkeys(("minute", "hour", "day"))}


def decide(times: int) -> None:
    for _ in range(times):
        get_engine().check([Charge("key", Limit(1_000, 60), usage="rule|free")], now_us=60_000_000)


def test_the_command_says_what_came() -> None:
    decide(3)
    assert manage("collect") == "Collected 1 batch: 3 decisions of rules.\n"
    assert UsageBucket.objects.get(granularity="day").allowed == 3
    assert manage("collect") == "Nothing to collect: no minute with usage has ended since the last collection.\n"


class NoReplica:
    """A router whose database for reading is not there."""

    def db_for_read(self, *args: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, *args: Any, **hints: Any) -> str:
        return "default"


def test_a_replica_that_is_behind_is_not_asked(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [NoReplica()]
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": {"minute": 8}}
    charge = Charge("key", Limit(1_000, 60), usage="rule|free", partition="caller")
    get_engine().check([charge], now_us=60_000_000)
    assert manage("collect").startswith("Collected 1 batch: 1 decision of rules.")
    collect_usage(behind=1)


def test_the_command_deletes_what_is_past_its_time(settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "RETENTION": {"minute": 8, "hour": 100, "day": None}}
    decide(3)
    assert manage("collect").endswith("Deleted 4 rows that are older than RETENTION allows.\n")
    assert UsageBucket.objects.get().granularity == "day"


def test_the_command_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(progress: Any) -> Collected:
        for done in range(3):
            progress(done, 3)
        return Collected(3, 9)

    monkeypatch.setattr(collector, "collect", slow)
    monkeypatch.setattr(output, "_clock", iter((0.0, 0.5, 1.2, 11.1)).__next__)
    err = StringIO()
    manage("collect", stderr=err)
    assert err.getvalue() == "1 of 3 batches ...\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EngineUnavailable("gone"), "Redis cannot be reached now: gone"),
        (OperationalError("locked"), "database.*locked"),
    ],
)
def test_the_command_fails_with_a_reason(monkeypatch: pytest.MonkeyPatch, error: Exception, told: str) -> None:
    monkeypatch.setattr(collector, "collect", failing(error))
    with pytest.raises(CommandError, match=told) as caught:
        manage("collect")
    assert caught.value.returncode == 1


def test_the_command_fails_if_a_batch_could_not_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "collect", lambda _progress: Collected(1, 3, failed=2))
    with pytest.raises(CommandError, match="2 batches could not be collected, and will be tried again"):
        manage("collect")


def test_the_command_tells_that_memory_is_not_shared(settings: Any) -> None:
    settings.RATELIMITER = {"CACHE_ALIAS": None}
    err = StringIO()
    manage("collect", stderr=err)
    assert "RATELIMITER names no Redis" in err.getvalue()


def test_the_command_wants_a_subcommand() -> None:
    with pytest.raises(CommandError, match="SUBCOMMAND"):
        call_command("ratelimit")


def test_the_task_collects() -> None:
    decide(2)
    assert collect_usage.name == "django_ratelimiter.collect_usage"
    assert collect_usage.apply().successful()
    assert UsageBucket.objects.get(granularity="day").allowed == 2


def test_schedulers_that_import_the_tasks_of_each_app_need_no_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    decide(2)
    monkeypatch.setitem(sys.modules, "celery", None)
    spec = find_spec("django_ratelimiter.tasks")
    assert spec
    assert spec.loader
    spec.loader.exec_module(module := module_from_spec(spec))
    module.collect_usage()
    assert UsageBucket.objects.get(granularity="day").allowed == 2


def test_the_task_fails_quietly_while_redis_is_out_of_reach(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    location = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {**settings.CACHES, "ratelimit": location}
    result = collect_usage.apply()
    assert isinstance(result.result, EngineUnavailable)
    assert not [record for record in caplog.records if record.levelname == "ERROR" and record.name.startswith("celery")]


@pytest.mark.parametrize(("wrong", "says"), [("--percent=0", "percent"), ("--minutes=0", "minutes")])
def test_with_json_an_error_is_the_document(wrong: str, says: str) -> None:
    out = StringIO()
    with pytest.raises(CommandError, match=says) as raised:
        call_command("ratelimit", "collect", wrong, "--json", stdout=out)
    assert json.loads(out.getvalue()) == {"error": str(raised.value)}
