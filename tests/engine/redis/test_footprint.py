"""RedisEngine leaves few bytes per key and per logged request on its server, and nothing that stays for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit, Verdict
from django_ratelimiter.engine.redis import RedisEngine
from example_project.redis_server import RedisServer
from tests.engine.hits import CASES, DAY, limit_of
from tests.engine.trio import HOUR

YEAR = 366 * DAY
PARTITION = "p" * 40
KEEPING_REQUESTS = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.CONCURRENCY)


def name_of(charge: Charge, namespace: str = "rl") -> str:
    """The key that a charge is kept under."""
    return f"{{{namespace}:0}}:{charge.key}{charge.limit.tag}"


# Memory


@pytest.mark.parametrize("window", [60, 3_600, DAY, YEAR])
@pytest.mark.parametrize("case", CASES)
def test_a_counter_is_small(redis_client: redis.Redis, case: str, window: int) -> None:
    """165 bytes are allowed for one number of state and 200 for two; what is more than a number is not there yet."""
    charge = Charge(PARTITION, limit_of(case, window), 7)
    engine = RedisEngine(redis_client)
    for _ in range(2):
        engine.check([charge], now_us=HOUR)
        assert redis_client.memory_usage(name_of(charge)) <= 165


@pytest.mark.parametrize("calendar", ["day", "week", "month", "year"])
def test_a_calendar_s_counter_is_small_where_its_zone_has_a_long_name(redis_client: redis.Redis, calendar: str) -> None:
    day = 31 if calendar == "month" else None
    zone = "America/North_Dakota/New_Salem"
    charge = Charge(PARTITION, Limit(9, calendar=calendar, algorithm="fixed_window", timezone=zone, anchor_day=day))
    RedisEngine(redis_client).check([charge])
    assert redis_client.memory_usage(name_of(charge)) <= 165
    assert len(name_of(charge)) <= 60, "one more, and the allocator takes 80 bytes for the name instead of 64"


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if each not in KEEPING_REQUESTS])
def test_numbers_take_their_room_whatever_they_are(redis_client: redis.Redis, algorithm: Algorithm) -> None:
    charge = Charge(PARTITION, Limit(2**40, 60, algorithm), 2**40 - 1)
    assert RedisEngine(redis_client).check([charge])[0].allowed
    assert redis_client.memory_usage(name_of(charge)) <= 165


@pytest.mark.once
@pytest.mark.parametrize("algorithm", KEEPING_REQUESTS)
def test_a_logged_request_takes_twelve_bytes_at_most(redis_client: redis.Redis, algorithm: Algorithm) -> None:
    """At every number of them: the sizes that the server's allocator has lie up to a quarter apart.

    The first thousand are weighed one by one, the others by ten: as if all the room were taken by the first of them.
    """
    engine = RedisEngine(redis_client)
    charge = Charge(PARTITION, Limit(4_000, YEAR, algorithm))
    worst = 0.0
    for entries in range(1, 4_001):
        assert engine.check([charge], now_us=HOUR + entries)[0].allowed
        fewest = entries if entries <= 1_000 else entries - 9
        if entries <= 1_000 or entries % 10 == 0:
            worst = max(worst, (redis_client.memory_usage(name_of(charge)) - 165) / fewest)
    assert worst <= 12


def test_a_log_of_a_hundred_slots_keeps_six_bytes_each(redis_client: redis.Redis) -> None:
    charge = Charge(PARTITION, Limit(1_000, 100, "sliding_window_slots", slots=100))
    engine = RedisEngine(redis_client)
    for second in range(200):
        engine.check([charge], now_us=HOUR + second * 1_000_000)
    assert redis_client.strlen(name_of(charge)) == 7 + 100 * 6
    assert redis_client.memory_usage(name_of(charge)) <= 165 + 100 * 8


def test_what_has_left_the_window_leaves_the_log(redis_client: redis.Redis) -> None:
    engine = RedisEngine(redis_client)
    charge = Charge(PARTITION, Limit(1_000, 60, "sliding_window_log"))
    for number in range(1_000):
        engine.check([charge], now_us=HOUR + number)
    engine.check([charge], now_us=HOUR + 60_000_000 + 990)
    assert redis_client.memory_usage(name_of(charge)) <= 165 + 12 * 10


# Time to live

LIMITS = [limit_of(case, window) for case in CASES for window in (60, 3_600, DAY, YEAR)]
PER_CALL = 500


def charges_by(random: Random, first: int, count: int) -> list[Charge]:
    """Charges of random algorithms over keys of their own. Some are rejected, and some of these are counted."""
    return [
        Charge(
            str(number),
            random.choice(LIMITS),
            random.choice((1, 1, 2, 3, 10_000)),
            gating=False,
            count_refusals=random.random() < 0.5,
            usage="rule|" if number % 100 == 0 else None,
        )
        for number in range(first, first + count)
    ]


def change(engine: RedisEngine, random: Random, verdicts: Sequence[Verdict]) -> None:
    """Do with these keys all that an engine does: refund, release, reject, and go on with other limits."""
    engine.refund(random.sample(verdicts, len(verdicts) // 4))
    engine.release(verdicts)
    changed = [verdict.charge for verdict in verdicts]
    for quota in (1, 1_000):
        changed = [
            charge._replace(limit=replace(charge.limit, quota=quota, burst=None), count_refusals=True)
            for charge in changed
            if charge.limit.window is None or charge.limit.window <= 25 * DAY or charge.limit.burst is None
        ]
        later = engine.check(changed, refund_if_denied=verdicts)
        engine.refund(random.sample(later, len(later) // 4))
    engine.peek(changed)


def keys_that_stay(client: redis.Redis, count: int) -> int:
    """Make so many keys of random algorithms; how many keys of the server would never expire."""
    random, engine = Random(count), RedisEngine(client)
    engine.publish(1)
    first = 0
    while client.dbsize() < count:
        verdicts = engine.check(charges_by(random, first, PER_CALL), version=1)
        if first % 10_000 == 0:
            change(engine, random, verdicts)
        first += PER_CALL
    found = client.info("keyspace")["db0"]
    return found["keys"] - found["expires"]


def test_no_key_of_20_thousand_stays_but_the_version(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        assert keys_that_stay(client, 20_000) == 1


@pytest.mark.long
def test_no_key_of_a_million_stays_but_the_version(server: RedisServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        assert keys_that_stay(client, 1_000_000) == 1
