"""Aliases of callers: their digest never depends on REVEAL, and lists of callers can be read by HASH_KEY alone."""

from __future__ import annotations

import logging
from datetime import timedelta
from time import time_ns
from typing import Any

import pytest
import redis
from asgiref.sync import async_to_sync
from django.test import RequestFactory, override_settings
from django.utils import timezone

from django_ratelimiter import limiter
from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.base import Alias
from django_ratelimiter.engine.partition_stats import HOUR_US, MINUTE_US, is_sampled
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.partition_notes import WEIGHED_EXACTLY
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.inspection.caller import caller_of, named
from django_ratelimiter.inspection.references import Name, recent, revealed_to
from django_ratelimiter.models import TopCaller, TopPartition, UsageBatch, UsageBucket, UsageSample
from django_ratelimiter.usage.collector.partitions import collect_partitions
from django_ratelimiter.usage.collector.prune import prune
from django_ratelimiter.usage.reports.coverage import DAY, Period
from django_ratelimiter.usage.reports.report import Report
from django_ratelimiter.usage.times import stored
from django_ratelimiter.values.digests import alias_of, keyed_digest, whole
from tests.making import make_rule

pytestmark = pytest.mark.django_db(transaction=True)

ONE = Limit(1, 3_600, "fixed_window")


def ask(address: str = "192.0.2.7", **fields: str) -> bool:
    """Return whether a request of this address is allowed."""
    return limiter.check(RequestFactory().get("/hello/", REMOTE_ADDR=address, **fields)).allowed


def names(aliases: Any) -> list[str]:
    return [name.value for name in revealed_to(None, aliases).values()]


@pytest.mark.parametrize(
    ("partition", "is_open"),
    [
        *[(each, True) for each in ("user:42", "ip:192.0.2.7", "ip/64:2001:db8::/64", "host:example.org", "api_key:a")],
        *[(f"{name}:x", False) for name in ("header:X-Org", "field:username", "tenant", "session", "cookie:cart")],
        *[(f"{kind}{name}:x", False) for kind in ("", "field:", "header:") for name in ("jwt", "sid", "pwd", "totp")],
        ("user:42|ip:192.0.2.7", True),
        ("user:42|field:pin:1", False),
        ("", False),
        ("unreadable", False),
        (f"user:{'9' * 200}", False),
        ("user:%sha256-" + "0" * 64, False),
    ],
)  # fmt: skip
def test_tail_is_there_by_default_only_for_open_identities(partition: str, is_open: bool, settings: Any) -> None:
    alias = digest(partition)
    assert len(alias) == 22
    assert names([alias]) == ([partition.partition(":")[2] if "|" not in partition else partition] if is_open else [])
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    assert (digest(partition), digest(partition).tail) == (alias, "")
    assert names([alias]) == [], "what REVEAL does not allow any more is not read either"


def test_digests_never_end_with_what_was_changed() -> None:
    alias = digest("user:42")
    for changed in (alias.tail[:-2], "A" * len(alias.tail), "é", ".", "A"):
        assert names([Alias.of(alias, changed)]) == []
    assert alias_of(whole(alias)).tail == alias.tail


@pytest.fixture(params=["redis", "memory"])
def engine(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Any:
    return RedisEngine(redis_client, "aliases") if request.param == "redis" else MemoryEngine()


def test_engines_list_aliases_and_count_by_digests(engine: Any) -> None:
    """Also if only some calls know the tail, as while REVEAL changes."""
    who = next(each for number in range(99) if is_sampled(each := digest(f"user:{number}")))
    for caller in (str(who), who, Alias.of(who, "")):
        engine.check([Charge(f"one:{caller}", ONE, usage="one|", partition=caller)])
    now = time_ns() // 1_000
    [top] = engine.partitions.top_partitions([(now // HOUR_US, "one")], 9)
    [(_, samples)] = engine.partitions.samples(now // MINUTE_US + 2).items()
    [rejection] = engine.recent_rejections()
    assert (top, samples, rejection.times) == ({who: (1, 2)}, {("one|", who): 3}, 2)
    assert {each.tail for each in (*top, *[key[1] for key in samples], rejection.partition)} == {who.tail}
    assert not engine.check([Charge(f"one:{who}", ONE, partition=who)])[0].allowed, "the same counter"


def test_no_key_and_no_counter_of_redis_contains_a_tail(redis_client: redis.Redis) -> None:
    make_rule("by-ip", quota=1, partition_by=["ip"])
    assert (ask(), ask()) == (True, False)
    tail = digest("ip:192.0.2.7").tail.encode()
    assert not [key for key in redis_client.keys("*") if tail in key]
    kinds = {redis_client.type(key) for key in redis_client.keys("*") if digest("ip:192.0.2.7").encode() in key}
    assert kinds == {b"string"}


@pytest.mark.parametrize("synced", [None, 60_000])
def test_busy_process_names_whom_it_rejects(synced: int | None) -> None:
    make_rule("busy", quota=10_000, scope="busy")
    make_rule("by-ip", quota=1, partition_by=["ip"], algorithm="fixed_window", sync_interval_ms=synced)
    [limiter.check(RequestFactory().get("/"), scope="busy") for _ in range(WEIGHED_EXACTLY + 1)]
    found = [f"198.51.100.{last}" for last in range(10, 25)]
    for address in found:
        assert (ask(address), ask(address)) == (True, False)
        assert address in names(each.partition for each in recent())
    assert {*found} < {*names(each.partition for each in recent())}


def test_rejected_callers_are_named_on_an_event_loop() -> None:
    make_rule("by-ip", quota=1, partition_by=["ip"])

    async def ask_twice() -> list[bool]:
        request = RequestFactory().get("/hello/", REMOTE_ADDR="192.0.2.7")
        return [(await limiter.acheck(request)).allowed, (await limiter.acheck(fresh())).allowed]

    def fresh() -> Any:
        return RequestFactory().get("/hello/", REMOTE_ADDR="192.0.2.7")

    assert async_to_sync(ask_twice)() == [True, False]
    assert names(each.partition for each in recent()) == ["192.0.2.7"]


def test_tails_of_rejections_are_deleted_with_them(redis_client: redis.Redis) -> None:
    engine, began = RedisEngine(redis_client, "aliases"), time_ns() // 1_000 - 3_600_000_000
    for number in range(2_300):
        who, now_us = digest(f"user:{number}"), began + number * 1_000_000
        rule = f"one{number % 9}"
        engine.check([Charge(f"{rule}:{who}", ONE, cost=2, usage=f"{rule}|", partition=who)], now_us=now_us)
    tails = [name for name in redis_client.hkeys("{aliases:0}:recent") if name.startswith(b"\t")]
    assert 300 < len(tails) < 1_500
    found = engine.recent_rejections(9_999)
    lacking = [place for place, each in enumerate(found) if not each.tail]
    assert lacking == []


@pytest.mark.parametrize("identity", ["ip", "ip/24", "header:X-Org"])
def test_reveal_moves_no_counter(identity: str, settings: Any) -> None:
    make_rule("by-it", quota=3, partition_by=[identity])
    for reveal, is_allowed in (([], True), ([identity], True), ([], True), ([identity], False)):
        settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": reveal}
        assert ask(HTTP_X_ORG="acme") is is_allowed
    value = {"ip": "192.0.2.7", "ip/24": "192.0.2.0/24"}.get(identity, "acme")
    assert names(each.partition for each in recent()) == [value]
    [top] = get_engine().partitions.top_partitions([(time_ns() // 1_000 // HOUR_US, "by-it")], 9)  # type: ignore[attr-defined]
    assert (list(top.values()), names(top)) == ([(3, 1)], [value])
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    assert names(top) == []


def test_log_names_the_alias(caplog: pytest.LogCaptureFixture, settings: Any) -> None:
    make_rule("by-ip", quota=1, partition_by=["ip"])
    for reveal in (["ip"], []):
        settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": reveal}
        ask()
        with caplog.at_level(logging.WARNING, "django_ratelimiter"):
            assert not ask()
        record: Any = caplog.records[-1]
        assert names([alias_of(record.partition)]) == (["192.0.2.7"] if reveal else [])
        assert record.partition == whole(digest("ip:192.0.2.7"))


def itself(raw: str) -> str:
    """An API_KEY_RESOLVER whose values are the keys."""
    return raw


def account(_raw: str) -> str:
    """An API_KEY_RESOLVER whose values are accounts."""
    return "account-1"


@pytest.mark.parametrize(("resolver", "value"), [("itself", hash_api_key("sk-secret")), ("account", "account-1")])
def test_alias_of_a_key_holds_its_resolved_value_and_never_the_key(resolver: str, value: str, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_RESOLVER": f"{__name__}.{resolver}"}
    make_rule("by-key", quota=1, partition_by=["api_key"])
    assert [ask(HTTP_X_API_KEY="sk-secret") for _ in range(2)] == [True, False]
    [rejection] = recent()
    assert rejection.partition == digest(f"api_key:{value}")
    assert revealed_to(None, [rejection.partition]) == {rejection.partition: Name("api_key", value)}


def collect() -> None:
    for granularity in ("hour", "day"):
        start = stored(_start(granularity))
        UsageBucket.objects.get_or_create(
            rule_slug="by-ip", granularity=granularity, start=start, defaults={"allowed": 9}
        )
    collect_partitions(get_engine(), "default")


def _start(granularity: str) -> Any:
    at = timezone.localtime()
    return at.replace(minute=0, second=0, microsecond=0, **({"hour": 0} if granularity == "day" else {}))


def test_top_callers_have_names_after_redis_was_flushed(redis_client: redis.Redis, settings: Any) -> None:
    make_rule("by-ip", quota=9, partition_by=["ip"])
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    assert ask()
    collect()
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": ["ip"]}
    assert ask()
    collect()
    redis_client.flushdb()
    for model in (TopPartition, TopCaller):
        assert model.objects.exclude(tail="").count() == 2, "the hour and the day"
        model.objects.update(start=stored(timezone.now() - timedelta(days=31)))
        [alias] = {Alias.of(row.partition, row.tail) for row in model.objects.all()}
        assert names([alias]) == ["192.0.2.7"]


def test_addresses_are_cut_from_rows_that_stay() -> None:
    user, address, pair = (digest(each) for each in ("user:7", "ip/24:192.0.2.0/24", "user:7|ip:192.0.2.7"))
    older, old, young = (stored(timezone.now() - timedelta(days=days)) for days in (400, 63, 61))
    for who in (user, address, pair):
        for at in (older, old, young):
            for model, of in ((TopPartition, {"rule_slug": "a"}), (TopCaller, {"identity": "user"})):
                model.objects.create(**of, granularity="day", start=at, partition=who, tail=who.tail, allowed=1)
            UsageSample.objects.create(rule_slug="a", minute=at, partition_hash=who, tail=who.tail, count=1)
    with override_settings(RATELIMITER={"RETENTION": {"minute": None}}):
        prune()
    columns = ((TopPartition, "start", "partition"), (TopCaller, "start", "partition"))
    for model, at, column in (*columns, (UsageSample, "minute", "partition_hash")):
        rows: Any = model.objects
        assert rows.count() == 9
        assert {*rows.filter(tail="").values_list(column, flat=True)} == {address, pair}
        assert rows.filter(tail="", **{f"{at}__lt": young}).count() == rows.filter(tail="").count() == 4


def test_rotated_key_gives_new_counters_and_lists_group_by_value(settings: Any) -> None:
    now = timezone.now()
    before = digest("user:7")
    make_rule("by-ip", quota=1, partition_by=["ip"])
    assert (ask(), ask()) == (True, False)
    settings.RATELIMITER = {**settings.RATELIMITER, "HASH_KEY": "new", "HASH_KEY_FALLBACKS": [None]}
    assert (ask(), ask()) == (True, False)
    assert names(each.partition for each in recent()) == ["192.0.2.7"] * 2
    after = digest("user:7")
    assert before != after
    assert names([before, after]) == ["7", "7"]
    start = stored(now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=2))
    for who, allowed in ((before, 5), (digest("user:8"), 6), (after, 4)):
        TopCaller.objects.create(
            identity="user", granularity="hour", start=start, partition=who, tail=who.tail, allowed=allowed
        )
    UsageBatch.objects.create(batch_id="1:before")
    for at in (start, start - 3 * DAY):
        UsageBucket.objects.create(rule_slug="by-ip", granularity="hour", start=at, allowed=9)
    TopCaller.objects.create(
        identity="user", granularity="hour", start=start - DAY, partition=before, tail=before.tail, allowed=3
    )
    report = Report(Period(now - DAY, now), identity="user")
    rows = report.top_partitions
    assert [(row.partition, row.requests) for row in rows] == [(after, 9), (digest("user:8"), 6)]
    assert names(row.partition for row in rows) == ["7", "8"]
    assert [row.requests_before for row in report.compared(rows)] == [3, 0]
    settings.RATELIMITER = {**settings.RATELIMITER, "HASH_KEY_FALLBACKS": []}
    assert names([before, after]) == ["7"]


def test_bare_digest_is_named_as_long_as_a_list_knows_its_tail() -> None:
    make_rule("by-ip", quota=1, partition_by=["ip"])
    assert (ask(), ask()) == (True, False)
    who = str(digest("ip:192.0.2.7"))
    found = named(caller_of("digest", who))
    assert (found.kind, found.value) == ("ip", "192.0.2.7")
    other = caller_of("digest", str(keyed_digest(b"k" * 64, "ip:192.0.2.7")))
    assert named(other) == other
