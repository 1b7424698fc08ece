"""Names instead of digests: told beside a rejection, kept in Redis for a while, shown only if REVEAL says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient, Client, RequestFactory, override_settings

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.conf import are_revealed, problems
from django_ratelimiter.engine.coroutines import run_sync
from django_ratelimiter.engine.partition_stats import HOUR_US
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.callers import MAX_NAMES
from django_ratelimiter.engine.redis.partition_notes import WEIGHED_EXACTLY, WEIGHT
from django_ratelimiter.engine.usage.rejections import NAME_SECONDS
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest
from django_ratelimiter.limiter import events, io
from django_ratelimiter.testing import RulesInForce
from django_ratelimiter.testing.builders import build_record
from django_ratelimiter.usage.live import names, sending
from django_ratelimiter.usage.live.names import MAX_WAITING, Name, notes
from tests.making import make_rule

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/hello/"
BY_USER = {"slug": "by-user", "limits": ["1/hour"], "partition_by": ["user"]}
BY_IP = {"slug": "by-ip", "limits": ["1/hour"], "partition_by": ["ip"]}
IP = digest("ip:127.0.0.1")


@pytest.fixture
def ann(client: Client) -> User:
    user = User.objects.create_user("ann", password="x")
    client.force_login(user)
    return user


def get_rejected(client: Client, times: int = 1) -> None:
    assert client.get(PATH).status_code == 200
    for _ in range(times):
        assert client.get(PATH).status_code == 429


def test_who_comes_is_named_and_where_it_was_rejected(client: Client, ann: User, ratelimit_rules: RulesInForce) -> None:
    ratelimit_rules(BY_USER)
    assert client.get(PATH).status_code == 200
    user = digest(f"user:{ann.pk}")
    assert names.revealed_to(None, [user, "unknown"]) == {user: Name("user", str(ann.pk))}, (
        "before anything is rejected"
    )
    assert names.views([("by-user", user)]) == {}
    assert client.get(PATH).status_code == 429
    assert set(names.views([("by-user", user), ("other", user)])) == {("by-user", user)}


def test_an_address_is_unless_reveal_says_no(client: Client, ratelimit_rules: RulesInForce, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    ratelimit_rules(BY_IP)
    get_rejected(client)
    assert (notes.names, list(notes.views)) == ({}, [f"by-ip {IP}"]), "its view and nothing else"
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": None}
    names.notes.forget()
    assert client.get(PATH).status_code == 429
    assert names.revealed_to(None, [IP]) == {IP: Name("ip", "127.0.0.1")}
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    assert names.revealed_to(None, [IP]) == {}, "what is no longer to be seen is not shown, though it is still kept"


def test_who_is_counted_by_address_instead_has_that_name(client: Client, ratelimit_rules: RulesInForce) -> None:
    ratelimit_rules({**BY_USER, "missing_partition": "ip"})
    get_rejected(client)
    assert names.revealed_to(None, [IP]) == {IP: Name("ip", "127.0.0.1")}


def test_who_comes_often_is_named_again_but_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr(names, "time", lambda: now[0])
    assert [number for number in range(1, 200) if notes.is_due(("me",))] == [1, 4, 16, 64, 128, 192]
    now[0] += 3_600
    assert [notes.is_due(("me",)) for _ in range(3)] == [True, False, False], "a new hour"


def ask_as(last: int) -> bool:
    """Return whether a request of this address is allowed."""
    return limiter.check(RequestFactory().get(PATH, REMOTE_ADDR=f"198.51.100.{last}")).allowed


def who_is(last: int) -> str:
    return digest(f"ip:198.51.100.{last}")


@pytest.mark.parametrize("slugs", [["by-ip"], ["by-ip", "synced"]])
def test_in_a_flood_all_who_are_listed_have_names(slugs: list[str]) -> None:
    """The calls that report their callers name them: also after the first calls of an hour, when few do."""
    for slug in slugs:
        synced = {"sync_interval_ms": 60_000 if slug == "synced" else None}
        make_rule(slug, quota=100_000, algorithm="fixed_window", partition_by=["ip"], **synced)
    hour = time_ns() // 1_000 // HOUR_US
    assert all(map(ask_as, [1] * (WEIGHED_EXACTLY + 1)))
    assert all(map(ask_as, [*range(10, 50)] * 2 * WEIGHT))
    engine: Any = get_engine()
    [top] = engine.partitions.top_partitions([(hour, "by-ip")], 1_000)
    assert len(top) > 30
    assert set(names.revealed_to(None, top)) == set(top) >= {who_is(1)}


def test_who_is_rejected_is_named_at_once_in_a_busy_process() -> None:
    make_rule("by-ip", quota=1, partition_by=["ip"])
    [ask_as(1) for _ in range(WEIGHED_EXACTLY + 1)]
    for last in range(10, 50):
        assert (ask_as(last), ask_as(last)) == (True, False)
        assert [*names.revealed_to(None, [who_is(last)])] == [who_is(last)]


def test_names_without_room_come_later() -> None:
    make_rule("by-ip", quota=1, partition_by=["ip"])
    full = {f"caller {number}": "" for number in range(MAX_WAITING)}
    notes.names.update(full)
    assert (ask_as(1), ask_as(1)) == (True, False)
    assert len(notes.names) == MAX_WAITING
    notes.names.clear()  # they are sent
    assert not ask_as(1)
    assert who_is(1) in notes.names


def test_the_count_of_callers_is_bounded_and_knows_the_heavy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MAX_NOTIFIED", 100)
    named = 0
    for number in range(5_000):
        for caller in ((f"caller {number}",), *[("heavy",)] * (number % 10 == 0)):
            named += notes.is_due(caller) and caller == ("heavy",)
            assert len(notes.times) <= 101
    assert named > 5


@pytest.fixture
def reject_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, str], None]:
    """Reject the same caller by the same rule: `reject_at(monotonic seconds, view)`."""
    now = [0.0]
    monkeypatch.setattr(names, "monotonic", lambda: now[0])
    monkeypatch.setattr(events, "_log_rejection", lambda _decision: None)
    rejection = SimpleNamespace(by=[SimpleNamespace(rule=build_record(BY_IP), digest="me")], reference="me")
    rejected: Any = SimpleNamespace(allowed=False, degraded=False, rejection=rejection, soft_exceeded=(), answer=None)

    def reject(at: float, view: str) -> None:
        now[0] = at
        request: Any = SimpleNamespace(META={}, resolver_match=SimpleNamespace(view_name=view))
        run_sync(events.send_events(io.ThreadIO(), request, rejected, rejected))

    return reject


def test_the_latest_view_is_sent_and_the_same_once_an_hour(reject_at: Callable[[float, str], None]) -> None:
    sent = []
    for at, view in ((7.5, "a"), (9.0, "a"), (10.0, "b"), (20.0, "a"), (3_600.0, "a"), (3_700.0, "a")):
        reject_at(at, view)
        sent += [(at, text) for text in notes.views.values()]
        notes.views.clear()
    assert sent == [(7.5, "a"), (10.0, "b"), (20.0, "a"), (3_700.0, "a")]


def test_a_view_without_room_is_sent_with_the_next_rejection(reject_at: Callable[[float, str], None]) -> None:
    notes.views = dict.fromkeys(map(str, range(MAX_WAITING)), "")
    reject_at(7.5, "a")
    notes.views = {}  # they are sent
    reject_at(8.0, "a")
    assert notes.views == {"by-ip me": "a"}


def test_without_redis_a_rejection_stays_one(
    client: Client, ann: User, ratelimit_rules: RulesInForce, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def write(self, _texts: object) -> None:
            raise EngineUnavailable("gone")

        def read(self, _whats: object) -> None:
            raise EngineUnavailable("gone")

    user = digest(f"user:{ann.pk}")
    ratelimit_rules(BY_USER)
    with monkeypatch.context() as without_redis:
        without_redis.setattr(names, "_store", Gone)
        get_rejected(client)
        with pytest.raises(EngineUnavailable):
            names.revealed_to(None, [user])
    assert user in names.revealed_to(None, [user]), "what was not stored is sent again"


def test_on_an_event_loop(ratelimit_rules: RulesInForce, async_client: AsyncClient, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": ["ip"]}
    ratelimit_rules(BY_IP)

    async def ask() -> list[int]:
        return [(await async_client.get(PATH)).status_code for _ in range(2)]

    assert async_to_sync(ask)() == [200, 429]
    assert names.revealed_to(None, [IP]) == {IP: Name("ip", "127.0.0.1")}


def test_a_page_that_looks_somebody_up_may_tell(ratelimit_rules: RulesInForce) -> None:
    names.remember("d" * 22, "user", "7|%")
    names.remember("e" * 22, "header:Authorization", "Bearer x")
    assert names.revealed_to(None, ["d" * 22, "e" * 22]) == {"d" * 22: Name("user", "7|%")}


def test_names_in_redis_expire_and_are_bounded(redis_client: redis.Redis) -> None:
    store = RedisEngine(redis_client, "names").names
    store.write({f"digest {number}": "user:1" for number in range(2_000)})
    keys = redis_client.keys("{names:0}:name:*")
    assert 0 < len(keys) <= min(MAX_NAMES, 2_000)
    assert all(NAME_SECONDS - 60 < redis_client.ttl(key) <= NAME_SECONDS == 86_400 for key in keys)
    redis_client.config_resetstat()
    found = store.read([f"digest {number}" for number in range(2_000)])
    assert len(found) == len(keys)
    assert set(found.values()) == {"user:1"}
    assert redis_client.info("commandstats")["cmdstat_mget"]["calls"] == 1


def test_names_of_a_process_without_redis_expire_too(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "CACHE_ALIAS": None}
    now = [1_000.0]
    monkeypatch.setattr(names, "time", lambda: now[0])
    names.remember("d" * 22, "ip", "192.0.2.7")
    now[0] += NAME_SECONDS - 1
    assert names.revealed_to(None, ["d" * 22]) == {"d" * 22: Name("ip", "192.0.2.7")}
    now[0] += 1
    assert names.revealed_to(None, ["d" * 22]) == {}


SECRETS = [["session"], ["cookie:cart"], ["user", "header:authorization"], ["header:Cookie"], ["header:X-Api_Key"]]


@pytest.mark.parametrize("value", ["user", [1], ["no identity"], {"user": 1}, *SECRETS])
def test_the_check_names_a_wrong_entry(value: object) -> None:
    with override_settings(RATELIMITER={"REVEAL": value}):
        assert [problem.entry for problem in problems()] == ["REVEAL"]


@pytest.mark.parametrize("value", [None, [], ["user", "ip"], ("header:X-Org", "tenant")])
def test_right_entries(value: object) -> None:
    with override_settings(RATELIMITER={"REVEAL": value}):
        assert problems() == []


@pytest.mark.parametrize(("name", "is_open"), [
    *[(name, True) for name in ("user", "ip", "ip/24", "api_key", "tenant", "author", "header:X-Org", "path:pk",
                                "field:username")],
    *[(name, False) for name in ("session", "header:Authorization", "header:X-Auth-Token", "field:password",
                                 "path:token", "field:one_time_code", "device_key", "header:Cookie",
                                 "header:X-Api-Key")],
])  # fmt: skip
def test_by_default_all_is_shown_but_what_may_be_a_credential(name: str, *, is_open: bool, settings: Any) -> None:
    assert are_revealed([name]) is is_open
    assert are_revealed(["user", name]) is is_open
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    assert not are_revealed([name])


def itself(raw: str) -> str:
    """An API_KEY_RESOLVER whose values are the keys."""
    return raw


def account(_raw: str) -> str:
    """An API_KEY_RESOLVER whose values are accounts."""
    return "account-1"


@pytest.mark.parametrize(("resolver", "value"), [("itself", None), ("account", "account-1")])
def test_a_key_is_stored_only_as_the_value_of_its_account(
    client: Client, ratelimit_rules: RulesInForce, resolver: str, value: str | None, settings: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_RESOLVER": f"{__name__}.{resolver}"}
    ratelimit_rules({"slug": "by-key", "limits": ["1/hour"], "partition_by": ["api_key"]})
    client.defaults["HTTP_X_API_KEY"] = "sk-secret"
    get_rejected(client)
    counted = digest(f"api_key:{value or 'sk-secret'}")
    assert names.revealed_to(None, [counted]) == ({counted: Name("api_key", value)} if value else {})
    assert "sk-secret" not in str([vars(store) for store in vars(names)["_in_memory"].values()])


def test_a_thread_sends_names_and_ends_when_none_is_left(
    monkeypatch: pytest.MonkeyPatch, start_sending: Callable[[sending.Sender], None]
) -> None:
    paused, go_on, threads = threading.Semaphore(0), threading.Semaphore(0), []

    def pause(_seconds: float) -> None:
        threads.append(threading.current_thread())
        paused.release()
        go_on.acquire()

    def stored() -> list[str]:
        return [*get_engine().names.read(["a", "b", "c"])]

    monkeypatch.setattr(sending, "sleep", pause)
    monkeypatch.setattr(sending.Sender, "start", start_sending)
    notes.add({"a": "ip:1"})
    assert paused.acquire(timeout=300)
    assert stored() == ["a"]
    notes.add({"b": "ip:2"})  # while the thread pauses: no second one
    assert stored() == ["a"]
    go_on.release()
    assert paused.acquire(timeout=300)
    assert stored() == ["a", "b"]
    go_on.release()
    threads[0].join(timeout=300)
    assert len(set(threads)) == 1
    notes.add({"c": "ip:3"})
    assert paused.acquire(timeout=300)
    go_on.release()
    threads[-1].join(timeout=300)
    assert len(set(threads)) == 2


def test_a_fork_has_a_thread_of_its_own(
    monkeypatch: pytest.MonkeyPatch, start_sending: Callable[[sending.Sender], None]
) -> None:
    started: list[int] = []
    monkeypatch.setattr(sending, "Thread", lambda **_options: SimpleNamespace(start=lambda: started.append(1)))
    sender = sending.Sender(lambda: None, lambda: True)
    start_sending(sender)
    start_sending(sender)
    assert started == [1]
    monkeypatch.setattr(sending, "getpid", lambda: -1)
    start_sending(sender)
    assert started == [1, 1]
