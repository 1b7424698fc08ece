"""Callers whom access entries deny: recorded beside the path, once a second for each process, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.test import AsyncClient, Client, override_settings
from pytest_django import DjangoAssertNumQueries

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis import callers as stored
from django_ratelimiter.engine.redis.commands import ShardCommands
from django_ratelimiter.engine.redis.connections.transport import Transport
from django_ratelimiter.engine.usage.rejections import Denial
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.models import AccessEntry
from django_ratelimiter.usage.live import denials, names, sending
from django_ratelimiter.values.access import AccessRecord

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]

ADDRESS = "192.0.2.7"
ENGINES = {"redis": {"CACHE_ALIAS": "ratelimit"}, "memory": {"CACHE_ALIAS": None}}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with override_settings(RATELIMITER=ENGINES[request.param]):
        yield ENGINES[request.param]


@pytest.fixture
def entry() -> AccessEntry:
    return AccessEntry.objects.create(action="deny", kind="ip", value="192.0.2.0/24", reason="abuse")


def deny(number: int, entry: int = 1, view: str = "plain", times: int = 1) -> None:
    """Note that an entry denied a caller of this number."""
    for _ in range(times):
        denials.note(AccessRecord("deny", "user", str(number), pk=entry), ("user",), digest(f"user:{number}"), {}, view)


def test_a_denied_caller_is_recorded_with_the_entry_and_the_view(
    client: Client, entry: AccessEntry, engine: dict[str, Any]
) -> None:
    for _ in range(3):
        assert client.get("/plain/", REMOTE_ADDR=ADDRESS).status_code == 403
    [row] = denials.recently_denied()
    assert (row.entry, row.kind, row.digest, row.times) == (entry.pk, "ip", digest(f"ip:{ADDRESS}"), 3)
    assert row.view == client.get("/plain/").wsgi_request.resolver_match.view_name
    assert row.since <= row.at
    client.get("/plain/", REMOTE_ADDR=ADDRESS)
    assert [each.times for each in denials.recently_denied()] == [4]


def test_on_event_loops_too(async_client: AsyncClient, entry: AccessEntry) -> None:
    from asgiref.sync import async_to_sync

    entry.value = "127.0.0.1"
    entry.save()
    with override_settings(RATELIMITER=ENGINES["redis"]):
        assert async_to_sync(async_client.get)("/plain/").status_code == 403
        assert [each.times for each in denials.recently_denied()] == [1]


def test_whom_nothing_denies_is_not_recorded(client: Client, entry: AccessEntry, engine: dict[str, Any]) -> None:
    assert client.get("/plain/", REMOTE_ADDR="198.51.100.1").status_code == 200
    assert denials.recently_denied() == []


def test_a_denied_request_waits_for_no_call_to_redis(
    client: Client,
    entry: AccessEntry,
    monkeypatch: pytest.MonkeyPatch,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    calls: list[bytes] = []
    with override_settings(RATELIMITER=ENGINES["redis"]):
        client.get("/plain/", REMOTE_ADDR=ADDRESS)
        monkeypatch.setattr(Transport, "pipeline", lambda _self, packed, _replies: calls.append(packed))
        monkeypatch.setattr(Transport, "call", lambda *given, **_named: calls.append(b""))
        with django_assert_num_queries(0):
            for _ in range(50):
                assert client.get("/plain/", REMOTE_ADDR=ADDRESS).status_code == 403
    assert calls == []


def test_what_waits_is_bounded_and_still_counted() -> None:
    with override_settings(RATELIMITER=ENGINES["redis"]):
        for number in range(denials.MAX_WAITING + 20):
            deny(number)
        rows = denials.recently_denied(1_000)
    assert len(rows) == denials.MAX_WAITING + 1
    [others] = [each for each in rows if not each.digest]
    assert (others.entry, others.kind, others.view, others.times) == (1, "user", "plain", 20)


def test_redis_holds_so_many_and_of_each_entry_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000
    monkeypatch.setattr(denials, "time", lambda: now)
    with override_settings(RATELIMITER=ENGINES["redis"]):
        store = get_engine().denials
        store.add([Denial(f"7 user few{each} view", now - 900, now - 900, 1) for each in range(5)])
        many = [Denial(f"8 user many{each} view", now - 800 + each, now - 800 + each, 1) for each in range(597)]
        store.add(many[:595])
        assert len(store.read()) == stored.MAX_DENIALS
        store.add(many[595:])
        rows = denials.recently_denied(1_000)
    assert len(rows) == stored.KEPT_DENIALS
    assert {each.digest for each in rows if each.entry == 7} == {f"few{each}" for each in range(5)}
    assert rows[0].digest == "many596"
    assert min(each.at for each in rows if each.entry == 8).timestamp() == now - 800 + 597 - 395


def test_what_is_a_day_old_is_not_shown_and_redis_forgets_all(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with override_settings(RATELIMITER=ENGINES["redis"]):
        deny(1)
        [row] = denials.recently_denied()
        [key] = [each for each in redis_client.scan_iter() if each.endswith(b":denials")]
        assert 86_000 < redis_client.ttl(key) <= 86_400
        monkeypatch.setattr(denials, "time", lambda: row.at.timestamp() + denials.FORGOTTEN_SECONDS)
        assert denials.recently_denied() == []


def test_without_redis_nothing_is_raised(client: Client, entry: AccessEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_given: object) -> None:
        raise EngineUnavailable("away")

    with override_settings(RATELIMITER=ENGINES["redis"]):
        monkeypatch.setattr(get_engine().denials, "add", away)
        assert client.get("/plain/", REMOTE_ADDR=ADDRESS).status_code == 403
        denials.send()
        assert denials.recently_denied() == []


@pytest.mark.parametrize(
    ("reveal", "known"), [([], {}), (["ip"], {digest(f"ip:{ADDRESS}"): names.Name("ip", ADDRESS)})]
)
def test_the_value_is_kept_only_if_reveal_says_so(
    client: Client, entry: AccessEntry, redis_client: redis.Redis, reveal: list[str], known: dict[str, names.Name]
) -> None:
    with override_settings(RATELIMITER={**ENGINES["redis"], "REVEAL": reveal}):
        client.get("/plain/", REMOTE_ADDR=ADDRESS)
        [row] = denials.recently_denied()
        assert names.revealed_to(None, [row.digest]) == known
    stored_texts = b" ".join(redis_client.dump(key) or b"" for key in redis_client.scan_iter())
    assert (ADDRESS.encode() in stored_texts) is bool(known)


def test_a_key_is_recorded_as_its_rules_know_it(client: Client) -> None:
    AccessEntry.objects.create(action="deny", kind="api_key", value=hash_api_key("leaked"))
    with override_settings(RATELIMITER=ENGINES["redis"]):
        assert client.get("/plain/", headers={"X-Api-Key": "leaked"}).status_code == 403
        [row] = denials.recently_denied()
    assert (row.kind, row.digest) == ("api_key", digest(f"api_key:{hash_api_key('leaked')}"))


def test_a_thread_sends_it_and_ends_when_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis, start_sending: Callable[[sending.Sender], None]
) -> None:
    paused, go_on, threads = threading.Semaphore(0), threading.Semaphore(0), []

    def pause(_seconds: float) -> None:
        threads.append(threading.current_thread())
        paused.release()
        go_on.acquire()

    monkeypatch.setattr(sending, "sleep", pause)
    monkeypatch.setattr(sending.Sender, "start", start_sending)
    with override_settings(RATELIMITER=ENGINES["redis"]):
        deny(1)
        assert paused.acquire(timeout=300)
        assert [each.times for each in get_engine().denials.read()] == [1]
        deny(1, times=4)  # while the thread pauses: no second one
        assert [each.times for each in get_engine().denials.read()] == [1]
        go_on.release()
        assert paused.acquire(timeout=300)
        assert [each.times for each in get_engine().denials.read()] == [5]
        go_on.release()
        threads[0].join(timeout=300)
        assert len(set(threads)) == 1
        deny(2)
        assert paused.acquire(timeout=300)
        go_on.release()
        threads[-1].join(timeout=300)
        assert len(set(threads)) == 2


def test_a_fork_has_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch, start_sending: Callable[[sending.Sender], None]
) -> None:
    started: list[int] = []
    monkeypatch.setattr(sending, "Thread", lambda **_options: SimpleNamespace(start=lambda: started.append(1)))
    monkeypatch.setattr(sending.Sender, "start", start_sending)
    deny(1, times=2)
    assert started == [1]
    for module in (denials, sending):
        monkeypatch.setattr(module, "getpid", lambda: -1)
    deny(1)
    assert started == [1, 1]
    assert [each.times for each in denials.waiting.drain()] == [1]  # the parent sends its own
    monkeypatch.setattr(denials.sender, "_sending_in", 0)


def test_a_cluster_s_client_is_asked_in_the_same_way(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client)
    through_client = stored.RedisDenials(ShardCommands(engine, lambda _shard, do: do(redis_client)))
    through_client.add([Denial("1 user abc view", 10, 9, 2)])
    engine.denials.add([Denial("1 user abc view", 12, 12, 3)])
    assert through_client.read() == engine.denials.read() == [Denial("1 user abc view", 12, 9, 5)]
