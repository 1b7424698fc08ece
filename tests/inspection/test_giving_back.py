"""Units given back, and leases ended, for every algorithm, on both engines."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.inspection import giving_back
from django_ratelimiter.inspection.counters import Counter
from django_ratelimiter.inspection.giving_back import end_lease, give_back, leases_of
from django_ratelimiter.rules.records import LimitRecord

#: In the middle of a minute of the clock, so that no window ends meanwhile.
START = 1_800_000_030_000_000


class Clock:
    """A time that the test moves on; both engines decide by it."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.now = engine, START

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def check(self, charges: Any) -> Any:
        return self.engine.check(charges, now_us=self.now)

    def peek(self, charges: Any) -> Any:
        return self.engine.peek(charges, now_us=self.now)


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(MemoryEngine() if request.param == "memory" else RedisEngine(redis_client, "back"))
    monkeypatch.setattr(giving_back, "get_engine", lambda: clock)
    return clock


def counter_of(limit: Limit, cost: int = 1) -> Counter:
    charge = Charge("export:ann", limit, cost)
    return Counter(None, "", LimitRecord(limit), charge, "ann")  # type: ignore[arg-type]


def left(engine: Clock, counter: Counter) -> int:
    return int(engine.peek([counter.charge])[0].remaining)


LIMITS = [
    Limit(10, 60, "fixed_window"),
    Limit(10, 60, "fixed_window", anchor="first_request"),
    Limit(10, None, "fixed_window", calendar="month"),
    Limit(10, 60, "sliding_window_log"),
    Limit(10, 60, "sliding_window_counter"),
    Limit(10, 60, "sliding_window_slots", slots=6),
    Limit(10, 3600, "token_bucket"),
    Limit(10, 3600, "token_bucket", burst=12),
    Limit(10, 3600, "token_bucket", refill="interval"),
    Limit(10, 3600, "gcra"),
    Limit(10, 3600, "leaky_bucket"),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_gives_back_exactly_so_many(engine: Clock, limit: Limit) -> None:
    counter = counter_of(limit)
    for _ in range(limit.capacity):
        engine.now += 1_000_000
        assert engine.check([counter.charge])[0].allowed
    before = left(engine, counter)
    assert give_back(counter, 4) == 4
    assert left(engine, counter) == before + 4
    assert give_back(counter, 100) == limit.capacity - before - 4  # no more than was used
    assert left(engine, counter) == limit.capacity
    assert give_back(counter, 1) == 0


def test_a_request_of_several_units_can_be_given_back_in_part(engine: Clock) -> None:
    counter = counter_of(Limit(10, 60, "sliding_window_log"), 5)
    engine.check([counter.charge])
    engine.now += 1_000_000
    engine.check([counter.charge])
    assert give_back(counter, 7) == 7
    assert left(engine, counter) == 7


def test_a_sliding_window_gives_back_what_the_window_before_holds(engine: Clock) -> None:
    counter = counter_of(Limit(10, 60, "sliding_window_counter"), 10)
    engine.check([counter.charge])
    engine.now += 45_000_000  # a quarter of the next window is gone
    assert left(engine, counter) == 2
    assert give_back(counter, 4) == 3  # of which each unit counts for three quarters
    assert left(engine, counter) == 5


def test_says_what_can_only_be_reset(engine: Clock) -> None:
    counter = counter_of(Limit(10, 60, "sliding_window_counter"))
    engine.check([counter.charge._replace(cost=10)])
    engine.now += 45_000_000
    engine.check([counter.charge])
    assert left(engine, counter) == 1
    assert give_back(counter, 5) == 1


def test_leases_are_listed_and_ended_one_by_one(engine: Clock) -> None:
    counter = counter_of(Limit(3, 60, "concurrency"))
    taken = []
    for _ in range(3):
        engine.now += 1_000_000
        taken += engine.check([counter.charge])
    leases = leases_of(counter)
    assert [lease.began_us for lease in leases] == [verdict.at_us for verdict in taken]
    assert [lease.ends_at.timestamp() for lease in leases] == [(each.at_us / 1e6) + 60 for each in taken]
    assert end_lease(counter, leases[1].began_us)
    assert [lease.began_us for lease in leases_of(counter)] == [taken[0].at_us, taken[2].at_us]
    assert not end_lease(counter, leases[1].began_us)
    engine.release(taken)  # the responses end, that of the lease which is gone as well
    assert left(engine, counter) == 3
