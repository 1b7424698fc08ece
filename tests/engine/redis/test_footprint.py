"""RedisEngine leaves few bytes per key and per logged request on its server."""

from __future__ import annotations

import pytest
import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.hits import CASES, DAY, limit_of
from tests.engine.trio import HOUR

YEAR = 366 * DAY
PARTITION = "p" * 40
KEEPING_REQUESTS = (Algorithm.SLIDING_WINDOW_LOG, Algorithm.CONCURRENCY)


def name_of(charge: Charge, namespace: str = "rl") -> str:
    """The key that a charge is kept under."""
    return f"{{{namespace}:0}}:{charge.key}{charge.limit.tag}"


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
