"""The same verdicts and counts on servers that are stricter than Redis: see tests/engine/strict."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from random import Random

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit, MemoryEngine, UsageCount, Verdict
from django_ratelimiter.engine.call import Call
from django_ratelimiter.engine.partition_stats import is_sampled
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.checks import dry_run
from django_ratelimiter.engine.redis.protocol import ScriptMode
from django_ratelimiter.engine.usage import UsageCarry
from django_ratelimiter.exceptions import EngineUnavailable
from tests.counting import sums_of, usage_of
from tests.engine.strategies import limit_by
from tests.engine.trio import Trio
from tests.engine.walk import Walk

pytest.importorskip("lupa", reason="lupa has no wheels for this Python")
from tests.engine.strict import Rules, StrictServer

RULES = [Rules("5.1"), Rules("5.4"), Rules("5.4", integers=True)]


@pytest.fixture(scope="module", params=RULES, ids=str)
def strict(request: pytest.FixtureRequest) -> Iterator[StrictServer]:
    with StrictServer(request.param) as server:
        yield server


@pytest.fixture
def engine(strict: StrictServer) -> Iterator[RedisEngine]:
    strict.space.do_flushdb()
    with redis.Redis.from_url(strict.url) as client:
        yield RedisEngine(client, "strict")


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("seed", range(2))
def test_walks(engine: RedisEngine, algorithm: Algorithm, seed: int) -> None:
    """The same verdicts as the memory engine and the reference, whatever is asked."""
    random = Random(seed)
    Walk(Trio(engine), random, [limit_by(random, algorithm), limit_by(random)]).go(30, editing=seed % 2 == 1)


HOUR = 490_000
NOW_US = HOUR * 3_600_000_000 + 90_000_000
MINUTE = NOW_US // 60_000_000
LATER = NOW_US + 120_000_000
TWO = Limit(2, 86_400, "fixed_window")
HELD = UsageCarry("one", ((MINUTE - 3, "api|free\nA", 2), (MINUTE, "all|\na", 4)))
#: A partition that is sampled.
SAMPLED = next(name for name in map(str, range(3, 1_000)) if is_sampled(name))


def decided(engine: Engine, times: int = 5, now_us: int = NOW_US) -> list[list[Verdict]]:
    """Calls of two rules, one of them in shadow, for partitions of which one is sampled."""
    made = []
    for number in range(times):
        who = SAMPLED if number % 2 else "b"
        charges = [
            Charge(f"api:{who}", TWO, usage="api|free", partition=who),
            Charge(f"all:{who}", Limit(1, 86_400), usage="all|", partition=who, gating=False),
        ]
        made.append(engine.check(charges, now_us=now_us, counts=HELD if number == 1 else None))
    return made


def known(engine: Engine) -> object:
    """All that is known of partitions."""
    found = engine.partitions
    return found.hours(), found.top_partitions([(HOUR, rule) for rule in ("api", "all")], 10), found.samples(MINUTE + 1)


def test_counts_and_partitions(engine: RedisEngine) -> None:
    memory = MemoryEngine()
    memory.partitions.now_us = lambda: NOW_US
    assert decided(engine) == decided(memory)
    assert known(engine) == known(memory)
    assert usage_of(engine, LATER) == usage_of(memory, LATER) != []
    assert engine.take_usage(now_us=LATER) == []


# What a call writes


def charge(key: str = "key", usage: str | None = "api|free") -> Charge:
    return Charge(key, TWO, usage=usage)


def scripts_run(strict: StrictServer) -> int:
    return strict.calls.count("EVALSHA")


@pytest.fixture
def clock(strict: StrictServer, engine: RedisEngine) -> Iterator[list[int]]:
    """The server's time, which is another than ours and stands still; the script is loaded."""
    time = [NOW_US]
    before, strict.now = strict.now, lambda: time[0]
    engine.peek([charge()])
    strict.reset()
    yield time
    strict.now = before


def test_a_wrong_guess_of_the_minute_costs_a_call_and_counts_once(
    engine: RedisEngine, strict: StrictServer, clock: list[int]
) -> None:
    """The clock of the server is a year behind ours; from then on the guess is right, until a minute turns."""
    runs = []
    for minute in (0, 0, 1, 1):
        clock[0] = NOW_US + minute * 60_000_000
        engine.check([charge(str(minute)), charge("other", usage=None)._replace(cost=0)])
        runs.append(scripts_run(strict))
    assert runs == [2, 3, 5, 6]
    assert usage_of(engine, LATER) == [
        UsageCount(MINUTE, "api|free", allowed=2),
        UsageCount(MINUTE + 1, "api|free", allowed=2),
    ]


def test_a_wrong_guess_writes_nothing(engine: RedisEngine, strict: StrictServer, clock: list[int]) -> None:
    packed = engine.encode(ScriptMode.CHECK, Call.of([charge()]), (), 7, None, (NOW_US + 60_000_000,))
    strict.space.do_set(b"{strict:0}:version", b"0:6")
    before = copy.deepcopy(strict.space.keys)
    assert engine._transport.call(packed) == [-2, NOW_US, NOW_US]
    assert strict.space.keys == before
    engine.check([charge()], version=7)
    assert strict.space.keys[b"{strict:0}:version"] == b"0:7"


def test_a_call_that_counts_nothing_guesses_nothing(
    engine: RedisEngine, strict: StrictServer, clock: list[int]
) -> None:
    engine.check([charge(usage=None)])
    engine.peek([charge()])
    engine.refund(engine.check([charge("other", usage=None)]))
    assert scripts_run(strict) == 4
    assert not [word for words in strict.sent for word in words if b"usage:" in word or b":recent" in word]


def test_what_else_is_stored_under_a_key_that_is_refunded_stays(engine: RedisEngine, strict: StrictServer) -> None:
    """It is as good as missing, as under a key that is charged."""
    engine.publish(2)
    earlier = engine.check([charge("earlier", usage=None)], now_us=NOW_US)
    charges = [charge("first")._replace(count_refusals=True), charge("no")._replace(cost=9)]
    odd = b"{strict:0}:earlier" + TWO.tag.encode()
    strict.space.do_del(odd)
    strict.space.do_hincrby(odd, b"a", b"1")
    before = copy.deepcopy(strict.space.keys[odd])
    found = engine.check(charges, version=3, refund_if_denied=earlier, now_us=NOW_US)
    assert [verdict.allowed for verdict in found] == [True, False]
    assert (strict.space.keys[odd], earlier[0].spent) == (before, 0)


# Servers that reject TIME in scripts


@pytest.fixture(scope="module", params=["5.1", "5.4"])
def timeless(request: pytest.FixtureRequest) -> Iterator[StrictServer]:
    with StrictServer(Rules(request.param, time=False)) as server:
        yield server


@pytest.fixture
def by_client(timeless: StrictServer) -> Iterator[RedisEngine]:
    timeless.space.do_flushdb()
    with redis.Redis.from_url(timeless.url) as client:
        yield RedisEngine(client, "strict", clock="client")


def test_the_client_s_time_decides(by_client: RedisEngine, timeless: StrictServer) -> None:
    begun = time.time_ns() // 1_000
    by_client.publish(3)
    limits = [Limit(2, 86_400, algorithm) for algorithm in Algorithm] + [
        Limit(2, calendar="year", algorithm="fixed_window")
    ]
    charges = [Charge(limit.tag, limit, usage="api|free", partition=SAMPLED) for limit in limits]
    verdicts = [by_client.check(tuple(charges), version=3)[0] for _ in range(3)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert begun <= verdicts[0].at_us <= verdicts[1].at_us <= time.time_ns() // 1_000
    by_client.refund(verdicts[:1])
    assert by_client.take_usage(now_us=begun + 120_000_000) == by_client.take_usage() != []
    assert [*sums_of(by_client, "allowed", "rejected").values()] == [(2, 1)]
    assert by_client.partitions.now_us() <= time.time_ns() // 1_000
    assert "TIME" not in timeless.calls


def test_late_counts_of_one_minute_have_names_of_their_own(by_client: RedisEngine) -> None:
    """Also where the time that calls bring stands still."""
    counts = []
    for _ in range(3):
        by_client.check([charge()], now_us=NOW_US)
        counts += [batch for batch in by_client.take_usage(now_us=LATER) if batch not in counts]
    assert len(counts) == 3


def test_the_rejection_is_named(timeless: StrictServer) -> None:
    timeless.space.do_flushdb()
    with redis.Redis.from_url(timeless.url) as client:
        for ask in (RedisEngine(client, "strict").check, RedisEngine(client, "strict").peek):
            with pytest.raises(EngineUnavailable, match=r"does not allow TIME in scripts\. Set RATELIMITER\['CLOCK'\]"):
                ask([charge()])
    assert [key for key in timeless.space.keys if b"strict:0}:key" in key] == []


def test_a_server_without_a_clock_in_scripts_decides_nothing(
    engine: RedisEngine, strict: StrictServer, clock: list[int]
) -> None:
    """As of Dragonfly in 2024: TIME was 0 there, and a window that begins at 0 would never end."""
    clock[0] = 0
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match=r"cannot read the time\. Set RATELIMITER\['CLOCK'\] = \"client\""):
            engine.check([charge()])
    with pytest.raises(EngineUnavailable, match="cannot read the time"):
        dry_run(engine)
    assert strict.space.keys == {}


# The dry decision


def test_a_dry_run_passes_and_leaves_nothing(engine: RedisEngine, strict: StrictServer) -> None:
    dry_run(engine)
    assert strict.space.keys == {}


def test_a_dry_run_names_what_is_rejected(timeless: StrictServer) -> None:
    timeless.space.do_flushdb()
    with redis.Redis.from_url(timeless.url) as client:
        with pytest.raises(EngineUnavailable, match="does not allow TIME in scripts"):
            dry_run(RedisEngine(client, "strict"))
        dry_run(RedisEngine(client, "strict", clock="client"))
    assert timeless.space.keys == {}
