"""RedisEngine and its server: keys, time to live, round trips, connections, and what only Redis itself can show."""

from __future__ import annotations

import gc
import os
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, EngineUnavailable, Limit, MemoryEngine, Verdict
from django_ratelimiter.engine.calendars import Window
from django_ratelimiter.engine.call import Call
from django_ratelimiter.engine.redis import RedisEngine
from example_project.redis_server import RedisServer
from tests.counting import engine_at
from tests.engine.asking import fresh
from tests.engine.hits import CASES, limit_of
from tests.engine.hits import DAY as DAY_SECONDS
from tests.engine.strategies import cost_by, costs, limits
from tests.engine.trio import HOUR
from tests.making import fork
from tests.reference import capacity_of, period_of

DAY = Charge("key", Limit(5, 86_400, "token_bucket"), usage="rule|tier")


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    return RedisEngine(redis_client, namespace="test")


# Keys


@pytest.mark.parametrize("namespace", ["", "a{b", "a}b"])
def test_a_namespace_has_no_braces(redis_client: redis.Redis, namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace: must be some text without braces"):
        RedisEngine(redis_client, namespace)


def test_every_key_stands_under_one_tag_and_all_but_the_version_expire(
    engine: RedisEngine, redis_client: redis.Redis
) -> None:
    engine.publish(1)
    for window in (0.1, 60, 366 * 86_400):
        for algorithm in Algorithm:
            charge = Charge("key", Limit(7, window, algorithm), usage="rule|", count_refusals=True)
            engine.check([charge], version=2)
            receipts = engine.check([charge])
            engine.check([charge._replace(cost=9)])
            engine.refund(receipts)
            engine.check([charge._replace(limit=replace(charge.limit, quota=3))], refund_if_denied=receipts)
    engine.take_usage(now_us=HOUR * 2)
    engine.check([Charge("other", Limit(5, 60), usage="rule|")])
    keys = redis_client.keys()
    assert len(keys) == 3 * len(Algorithm) + 1 + len(
        [b"version", b"usage:MINUTE", b"recent", b"batch:MINUTE:ID", b"batches", b"source"]
    )
    assert all(key.startswith(b"{test:0}:") for key in keys)
    assert [key for key in keys if redis_client.ttl(key) < 0] == [b"{test:0}:version"]


@pytest.mark.parametrize("case", CASES)
def test_a_counter_lives_as_long_as_it_says_something(
    engine: RedisEngine, redis_client: redis.Redis, case: str
) -> None:
    """And ten seconds longer, for a clock that is stepped back."""
    for window in (60, 366 * DAY_SECONDS):
        limit = limit_of(case, window)
        verdict = engine.check([Charge("key", limit, cost=2)])[0]
        left_ms = redis_client.pttl(f"{{test:0}}:key{limit.tag}")
        # Lives are counted in whole milliseconds, and one may have begun since the script asked for the time.
        assert -1 < verdict.reset_after * 1_000 + 10_001 - left_ms < 1_000


@pytest.mark.parametrize("case", CASES)
def test_each_spending_lengthens_a_life_as_far_as_it_must(
    engine: RedisEngine, redis_client: redis.Redis, case: str
) -> None:
    """In the window of the one before and in a later one; what is taken in advance too."""
    limit = limit_of(case, 60)
    charge, key = Charge("key", limit, cost=2), f"{{test:0}}:key{limit.tag}"

    def assert_that_life_is_right(verdict: Verdict) -> None:
        # Lives are counted in whole milliseconds, and one may have begun since the script asked for the time.
        assert -1 < verdict.reset_after * 1_000 + 10_001 - redis_client.pttl(key) < 1_000

    engine.check([charge], now_us=time.time_ns() // 1_000 - limit.window_us)
    redis_client.pexpire(key, 5_000)
    for wants in ((), (), (3,)):
        assert_that_life_is_right(engine.check(Call.of([charge]).fetching(wants))[0])


def test_a_refund_does_not_shorten_or_lengthen_a_life(engine: RedisEngine, redis_client: redis.Redis) -> None:
    receipts = engine.check([DAY])
    redis_client.pexpire(f"{{test:0}}:key{DAY.limit.tag}", 77_000)
    engine.refund(receipts)
    assert 70_000 < redis_client.pttl(f"{{test:0}}:key{DAY.limit.tag}") <= 77_000


def test_two_namespaces_share_nothing(redis_client: redis.Redis) -> None:
    one, other = RedisEngine(redis_client, "one"), RedisEngine(redis_client, "other")
    one.publish(3)
    one.check([DAY], version=3)
    assert other.peek([DAY])[0].remaining == 5
    assert other.take_usage(now_us=HOUR * 2) == []
    assert len(one.take_usage(now_us=HOUR * 2)) == 1


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}])
def test_clients_of_every_kind(redis_url: str, options: dict[str, object]) -> None:
    with engine_at(redis_url, "kinds", **options) as engine:
        engine.publish(1)
        assert engine.check([DAY], version=1)[0].remaining == 4
        (batch,) = engine.take_usage(now_us=HOUR * 2)
        assert [count.allowed for count in engine.read_usage(batch)] == [1]
        engine.drop_usage(batch)
        assert engine.read_usage(batch) == []
        engine.reset([DAY])
        assert engine.peek([DAY])[0].remaining == 5


# Round trips and connections


def test_a_check_is_one_call(server: RedisServer) -> None:
    """Whatever is in it: version, charges, receipts, usage."""
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client)
        engine.publish(1)
        charges = [Charge(algorithm, Limit(5, 60, algorithm), usage="rule|tier") for algorithm in Algorithm]
        receipts = engine.check(charges, version=1)
        client.config_resetstat()
        for _ in range(5):
            receipts = engine.check(charges, version=1, refund_if_denied=receipts)
        assert not receipts[0].allowed
        stats = client.info("commandstats")
        assert stats.pop("cmdstat_evalsha")["calls"] == 5
        from_script = {"mget", "get", "set", "time", "pttl", "hincrby", "hsetnx", "expire", "hget", "hset", "hlen"}
        assert set(stats) <= {f"cmdstat_{name}" for name in from_script} | {"cmdstat_config|resetstat", "cmdstat_info"}


def test_a_server_whose_day_is_never_found_gives_no_decision(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock would have to jump during the call; it is not asked for ever."""
    monkeypatch.setattr("django_ratelimiter.engine.limits.window_at", lambda *_: Window(HOUR, HOUR + 1))
    with redis.Redis.from_url(server.url) as client:
        engine, limit = RedisEngine(client), Limit(5, calendar="day", algorithm="fixed_window")
        engine.check([DAY])
        client.config_resetstat()
        with pytest.raises(EngineUnavailable, match="left its minute or calendar windows 4 times"):
            engine.check([Charge("key", limit), DAY])
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 4
        assert engine.check([DAY])[0].remaining == 3, "and nothing was spent"


def test_a_forgotten_engine_hangs_up(redis_url: str) -> None:
    """Python would close the sockets as well, but with a warning for each."""
    with redis.Redis.from_url(redis_url) as client, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = RedisEngine(client)
        engine.check([DAY])
        (connection,) = engine._transport._pool.idle
        assert connection.is_usable()
        del engine
        gc.collect()
        assert vars(connection._redis_connection)["_sock"] is None
    assert caught == []


@pytest.mark.parametrize("has_poll", [True, False], ids=["poll", "no poll"])
def test_a_connection_that_the_server_has_closed_is_replaced(
    server: RedisServer, has_poll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows has no poll, nor have green threads; there redis-py tests it, and raises at the end of a connection."""
    if not has_poll:
        monkeypatch.setattr("django_ratelimiter.engine.redis.connections.connection.select", object())
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client, deadline=20.0)
        assert engine.check([DAY])[0].remaining == DAY.limit.quota - 1
        for number in (2, 3):
            (connection,) = engine._transport._pool.idle
            client.client_kill_filter(_type="normal", skipme=True)
            assert connection.has_arrived(10_000)  # waits for the end
            assert engine.check([DAY])[0].remaining == DAY.limit.quota - number


def test_an_answer_that_is_an_error_keeps_the_connection(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client)
        engine.check([DAY])
        before = client.info("stats")["total_connections_received"]
        client.rpush("{rl:0}:usage:1", "a")
        with pytest.raises(EngineUnavailable, match="WRONGTYPE"):
            engine.check([DAY._replace(key="odd", usage="rule|")], now_us=60_000_000)
        assert engine.check([DAY])[0].remaining == 3
        assert client.info("stats")["total_connections_received"] == before


def test_a_fork_shares_no_connection(server: RedisServer) -> None:
    """Parent and child would read each other's replies."""
    with redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client, deadline=20.0)
        engine.check([DAY])
        before = client.info("stats")["total_connections_received"]
        child = fork()
        if not child:
            with suppress(Exception):
                os._exit(engine.check([DAY])[0].remaining != 3)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert engine.check([DAY])[0].remaining == 2
        assert client.info("stats")["total_connections_received"] == before + 1


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra", "leaky_bucket"])
def test_a_lowered_quota_is_not_forgotten_before_the_time_that_was_promised(
    engine: RedisEngine, redis_client: redis.Redis, algorithm: str
) -> None:
    charge = Charge("ann", Limit(1_000, 3_600, algorithm))
    engine.check([charge])
    (name,) = redis_client.keys("*")
    assert 3_600 < redis_client.pttl(name) < 14_000, "3.6 s until the token is back, and ten of grace"
    lowered, state = charge._replace(limit=Limit(1, 3_600, algorithm)), redis_client.get(name)
    rejected = engine.check([lowered])[0]
    assert not rejected.allowed
    assert redis_client.pttl(name) > 1_000 * rejected.retry_after
    assert redis_client.get(name) == state, "it only lives longer"


def test_a_key_without_an_expiry_gets_one_when_it_rejects(engine: RedisEngine, redis_client: redis.Redis) -> None:
    charge = Charge("ann", Limit(1, 3_600, "fixed_window", anchor="first_request"))
    engine.check([charge])
    (name,) = redis_client.keys("*")
    redis_client.persist(name)
    engine.peek([charge])
    assert redis_client.pttl(name) == -1, "a peek changes nothing"
    engine.check([charge])
    assert 3_600_000 < redis_client.pttl(name) <= 3_610_000


@given(data=st.data())
def test_a_rejected_call_leaves_every_counter_as_it_was(redis_url: str, data: st.DataObject) -> None:
    """Byte for byte, and for as long as before."""
    with redis.Redis.from_url(redis_url) as client:
        mark, random = fresh(), data.draw(st.randoms(use_true_random=False))
        engine = RedisEngine(client, namespace=mark)

        def raw() -> dict[bytes, tuple[bytes | None, int]]:
            return {key: (client.dump(key), client.pexpiretime(key)) for key in client.keys(f"{{{mark}:0}}:*")}

        chosen = data.draw(st.lists(limits(), min_size=2, max_size=4))
        charges = [Charge(f"key{number}", limit, gating=random.random() < 0.5) for number, limit in enumerate(chosen)]
        now = HOUR
        for _ in range(random.randint(1, 4)):
            for charge in charges:
                engine.check([charge._replace(cost=cost_by(random, charge.limit))], now_us=now)
            now += random.randint(0, period_of(chosen[0]))
        wanted = [charge._replace(cost=data.draw(costs(charge.limit))) for charge in charges]
        wanted[0] = wanted[0]._replace(cost=capacity_of(chosen[0]) + 1, gating=True)
        before = raw()
        told = engine.peek(wanted, now)
        rejected = engine.check(data.draw(st.permutations(wanted)), now_us=now)
        engine.refund(rejected)
        engine.release(rejected)
        assert raw() == before
        assert not any(verdict.spent or verdict.soft_exceeded for verdict in rejected)
        assert _by_key(rejected) == _by_key(told)


def _by_key(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.charge.key: verdict for verdict in verdicts}


def test_the_engines_have_a_clock_of_their_own(redis_client: redis.Redis) -> None:
    clock = iter([7_000_000, 9_000_000]).__next__
    assert [verdict.at_us for verdict in MemoryEngine(clock).check([Charge("key", Limit(5, 60))])] == [7_000_000]
    seconds, rest = redis_client.time()
    engine = RedisEngine(redis_client, namespace="clock")
    first, second = (engine.check([Charge("key", Limit(5, 60))])[0].at_us for _ in range(2))
    moments = [seconds * 1_000_000 + rest, first, second, first + 60_000_000]
    assert all(earlier <= later for earlier, later in pairwise(moments))
