"""Redis that lacks this database's versions: what says so, and no process decides by rules from before an outage."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError
from django.test import Client, RequestFactory
from django.urls import reverse

from django_ratelimiter import backend, limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.checks import project
from django_ratelimiter.decision import Decision
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, StaleRules, Version
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.connections import async_transport
from django_ratelimiter.exceptions import WrongRedis
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.reset import reset
from django_ratelimiter.models import RuleSetState, TierAssignment, UsageBucket
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import published, storage, versions
from django_ratelimiter.tasks import collect_usage
from django_ratelimiter.usage.collector.alerts import Thresholds
from django_ratelimiter.usage.collector.collect import run
from example_project.redis_server import RedisServer
from tests.engine.slow import SlowProxy
from tests.making import failing, manage, save

from .rows import held, make_rule

pytestmark = pytest.mark.django_db(transaction=True)

EXPLAIN = ("explain", "GET", "/hello/")
KNOWN = ("caller", "--partition", "user:42")


def another_namespace(settings: Any, client: redis.Redis) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "NAMESPACE": "elsewhere"}


def another_site(settings: Any, client: redis.Redis) -> None:
    get_engine().publish(Version(7, storage.committed_version().epoch + 1))


def a_flush(settings: Any, client: redis.Redis) -> None:
    client.flushdb()


def no_redis(settings: Any, client: redis.Redis) -> None:
    settings.RATELIMITER = {"CACHE_ALIAS": None}


@pytest.fixture(
    params=[
        (another_namespace, "'elsewhere' of .* holds no version"),
        (a_flush, "holds no version.*flushed"),
        (another_site, "of another database"),
        (no_redis, "names no Redis"),
    ],
    ids=lambda param: param[0].__name__,
)
def problem(request: pytest.FixtureRequest, settings: Any, redis_client: redis.Redis) -> str:
    """A part of the sentence with the reason why this process's Redis is not the site's."""
    make_rule(partition_by=["user"])
    request.param[0](settings, redis_client)
    return str(request.param[1])


def test_switching_writes_the_database_and_fails_if_redis_is_not_the_sites(problem: str) -> None:
    before, first = held(), storage.committed_version()
    for subcommand in ("off", "off", "on", "on"):
        with pytest.raises(CommandError, match=problem):
            manage(subcommand)
        assert cache.enforcement_enabled() is (subcommand == "on")
        assert held() == before
    assert storage.committed_version() == first._replace(number=first.number + 2)


def test_a_save_is_not_published_if_redis_is_not_the_sites(problem: str, caplog: pytest.LogCaptureFixture) -> None:
    before = held()
    make_rule("another")
    assert held() == before
    assert re.search(problem, cache.publish_problem())
    assert cache.publish_problem() in caplog.text


def test_looking_up_and_forgetting_fail_if_redis_is_not_the_sites(problem: str) -> None:
    TierAssignment.objects.create(partition="user:42", multiplier=2)
    for words in (KNOWN, ("forget", *KNOWN[1:]), EXPLAIN, ("watch",)):
        with pytest.raises(CommandError, match=problem):
            manage(*words)
    operator = User.objects.create_superuser("ann")
    with pytest.raises(ValidationError, match=problem):
        reset(operator, caller_of("partition", "user:42"), [], "asked for")
    assert TierAssignment.objects.exists()


def test_a_collection_fails_if_redis_is_not_the_sites_and_publishes_where_it_is_empty(problem: str) -> None:
    before = held()
    with pytest.raises(CommandError, match=problem):
        manage("collect")
    if "holds no version" in problem:
        assert held() == storage.committed_version()
        assert manage("collect", "--json")
        assert manage(*KNOWN)
    else:
        assert held() == before
        assert isinstance(collect_usage.apply().result, WrongRedis)


def test_the_admins_switch_names_a_redis_that_is_not_the_sites(problem: str, admin_client: Client) -> None:
    address = reverse("admin:django_ratelimiter_enforcement")
    page = admin_client.post(address, {"enforcement": "off", "reason": "a drill"}, follow=True)
    levels = {message.level_tag: str(message) for message in page.context["messages"]}
    assert levels == {"warning": f"Saved, but Redis was not told. {published.held().problem}"}
    overview = admin_client.get(reverse("admin:app_list", args=["django_ratelimiter"]))
    assert published.held().problem in [item.text for item in overview.context["items"]]


def test_without_redis_commands_work_if_the_rules_were_published_to_none(settings: Any) -> None:
    no_redis(settings, get_engine())  # type: ignore[arg-type]
    make_rule()
    RuleSetState.objects.update(published=False)
    for words in (("off",), ("on",), KNOWN, EXPLAIN, ("watch",), ("collect",)):
        assert manage(*words)


def test_redis_that_never_held_a_version_needs_none() -> None:
    for words in (("collect",), EXPLAIN, ("off",), ("on",)):
        assert manage(*words)
    assert held() == storage.committed_version()


def test_a_restored_database_begins_one_epoch_and_collects(client: Client) -> None:
    make_rule(partition_by=["ip"])
    before = storage.committed_version()
    get_engine().publish(before._replace(number=99))  # as if later edits were lost
    assert client.get("/hello/").status_code == 200
    assert storage.committed_version().epoch > before.epoch
    assert published.held() is published.Held.OURS
    count_a_minute_of_usage()
    run(Thresholds())
    assert UsageBucket.objects.filter(granularity="minute").exists()


def count_a_minute_of_usage() -> None:
    get_engine().check([Charge("key", Limit(9, 60), usage="rule|free")], now_us=time.time_ns() // 1_000 - 120_000_000)


class TestTurns:
    """Another database replaces the rules in Redis again and again."""

    @pytest.fixture
    def conflict(self, client: Client) -> Callable[[int], None]:
        """Takes Redis away so many times; a request takes it back each time."""
        make_rule(partition_by=["ip"])

        def take_away(times: int) -> None:
            for _ in range(times):
                get_engine().publish(Version(1, storage.committed_version().epoch + 1))
                client.get("/hello/")
                assert held() == storage.committed_version()

        return take_away

    def test_usage_stays_in_redis_and_everything_says_why(
        self, conflict: Callable[[int], None], admin_client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        count_a_minute_of_usage()
        assert not project.check_turns()
        conflict(5)
        with pytest.raises(WrongRedis, match="in turns"):
            run(Thresholds())
        assert not UsageBucket.objects.exists()
        assert get_engine().take_usage()
        assert [message.id for message in project.check_turns()] == ["django_ratelimiter.W025"]
        overview = admin_client.get(reverse("admin:app_list", args=["django_ratelimiter"]))
        assert published.Held.IN_TURNS.problem in [item.text for item in overview.context["items"]]
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 2
        assert errors[1] == published.Held.IN_TURNS.problem
        assert manage("off") == "All enforcement is stopped.\n"
        assert held() == storage.committed_version()

    def test_turns_end_an_hour_after_the_last(
        self, conflict: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conflict(2)
        now = time.time_ns()
        for minutes, found in ((59, published.Held.IN_TURNS), (61, published.Held.OURS)):
            monkeypatch.setattr(published.time, "time_ns", lambda at=now + minutes * 60_000_000_000: at)
            assert published.held() is found

    def test_a_second_takeover_counts_within_a_minute(
        self, conflict: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [time.time_ns()]
        monkeypatch.setattr(published.time, "time_ns", lambda: now[0])
        for seconds, takeovers in ((0, 1), (61, 1), (59, 2), (3_599, 3), (3_601, 1)):
            now[0] += seconds * 1_000_000_000
            conflict(1)
            assert RuleSetState.objects.get().takeovers == takeovers


def test_redis_out_of_reach_is_not_taken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    make_rule()
    fail = failing(EngineUnavailable("made to fail"))
    with monkeypatch.context() as patch:
        patch.setattr(RedisEngine, "check", fail)
        with pytest.raises(EngineUnavailable):
            published.held()
        assert fail.call_count == 3
        with pytest.raises(CommandError, match="Redis could not be reached"):
            manage("off")
    assert not cache.enforcement_enabled()


PAUSES = published.PAUSES  # tests do without


def test_rules_saved_during_an_outage_hold_when_redis_is_back(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server()
    at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
    settings.CACHES = {"default": at, "ratelimit": at}
    limit = make_rule(quota=50, path="/items/1/", path_kind="exact").limits.get()
    assert quota() == 50
    engine, before = backend.get_engine(), cache._state
    publish = engine.publish

    # Another process saves, and Redis does not hear of it.
    monkeypatch.setattr(cache, "_state", cache._State())
    monkeypatch.setattr(engine, "publish", lambda version: None)
    save(limit, quota=60)
    monkeypatch.setattr(cache, "_state", before)
    monkeypatch.setattr(engine, "publish", publish)
    before.outdated = False

    breaker = engine.server_of(0).breaker  # type: ignore[attr-defined]
    while not breaker.is_open:
        breaker.fail(OSError("gone"))
    assert quota() is None, "by the failure policy"
    breaker.close()
    assert quota() == 60
    assert held() == cache.current_rules().version


@pytest.mark.parametrize("tells_its_run", [True, False], ids=["", "without INFO"])
def test_a_version_that_a_moved_address_lacks_is_published_there(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch, tells_its_run: bool
) -> None:
    """Event loops ask the new server, while an idle connection of threads still leads to the former one."""
    former, new = redis_server(), redis_server()
    monkeypatch.setattr(async_transport, "CALLS_IN_THREADS", 0)
    monkeypatch.setattr("django_redis.pool.ConnectionFactory._pools", {})
    if not tells_its_run:
        monkeypatch.setattr("django_ratelimiter.engine.redis.connections.server._run_of", lambda *replies: None)
    with SlowProxy(former.port, 0.0) as address:
        at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": address.url}
        settings.CACHES = {"default": at, "ratelimit": at}
        limit = make_rule(quota=50).limits.get()
        assert not adecide().degraded
        address.server_port = new.port
        assert not adecide().degraded
        save(limit, quota=60)
        (result,) = adecide().results
        assert result.limit.quota == 60


def test_a_version_that_is_never_there_is_not_called_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule()
    engine: Any = backend.get_engine()
    monkeypatch.setattr(engine, "check", failing(StaleRules(None)))
    assert limiter.check(RequestFactory().get("/")).degraded
    assert "Redis held no version of the rules" in caplog.text
    assert "replaced" not in caplog.text


def test_a_database_that_returns_older_rules_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a cache of queries in this process does, when another process saves."""
    limit = make_rule(failure_policy="closed").limits.get()
    older = cache.current_rules()
    limit.quota += 1
    limit.save()
    cache._state.rules, cache._state.outdated = older, False
    monkeypatch.setattr(cache.storage, "load", lambda: older)
    versions_before = versions.storage.committed_version()
    for _ in range(2):
        assert limiter.check(RequestFactory().get("/")).degraded
    assert "The database returns rules of version" in caplog.text
    assert "CACHALOT_UNCACHABLE_APPS" in caplog.text
    assert versions.storage.committed_version() == versions_before


def adecide() -> Decision:
    return async_to_sync(limiter.acheck)(RequestFactory().get("/"))


def quota() -> int | None:
    """What the response says, by whose rules it was decided."""
    limit = Client().get("/items/1/").headers.get("X-RateLimit-Limit")
    return limit and int(limit)


def test_a_process_that_has_just_begun_publishes_over_a_slow_network(
    redis_server: Callable[..., RedisServer], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a management command does: its first connection takes longer to make than a decision may wait."""
    monkeypatch.setattr(published, "PAUSES", PAUSES)
    server = redis_server()
    with SlowProxy(server.port, 0.15) as proxy:
        at = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": proxy.url.replace("/0", "/1")}
        settings.CACHES = {"default": at, "ratelimit": at}
        settings.RATELIMITER = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 1_000}  # to connect takes 1.2 s
        assert versions.publish(Version(7))
