"""What a limit promises, held against each engine by itself: no reference takes part."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import count, pairwise

import pytest
import redis
from hypothesis import assume, given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit, MemoryEngine, Verdict
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.strategies import algorithms, costs, limits, pauses, windows
from tests.engine.trio import HOUR
from tests.reference import capacity_of, period_of

_numbers = count()


@pytest.fixture(scope="session", params=["memory", "redis"])
def asked(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Engine]:
    """Each engine in turn, the same for all examples; they take keys of their own from `fresh`."""
    with redis.Redis.from_url(redis_url) as client:
        yield MemoryEngine() if request.param == "memory" else RedisEngine(client, namespace="properties")


def fresh() -> str:
    return f"key{next(_numbers)}"


def microseconds(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1_000_000)


def used_up(engine: Engine, charge: Charge, data: st.DataObject) -> int:
    """Spend at a few moments, until the charge would be refused; the time of that."""
    now = HOUR + data.draw(st.integers(0, 2 * period_of(charge.limit)))
    for _ in range(data.draw(st.integers(0, 5))):
        engine.check([charge._replace(cost=data.draw(costs(charge.limit)))], now_us=now)
        now += abs(data.draw(pauses(now, charge.limit)))
    left = engine.peek([charge], now)[0].remaining
    engine.check([charge._replace(cost=left - data.draw(st.integers(0, min(left, charge.cost - 1))))], now_us=now)
    return now


@given(data=st.data())
def test_a_refused_cost_passes_at_retry_after_and_not_before(asked: Engine, data: st.DataObject) -> None:
    limit = data.draw(limits())
    charge = Charge(fresh(), limit, data.draw(st.integers(1, capacity_of(limit))))
    now = used_up(asked, charge, data)
    refused = asked.check([charge], now_us=now)[0]
    assert not refused.allowed
    wait = microseconds(refused.retry_after)
    for moment in (wait - 1, data.draw(st.integers(0, wait - 1))):
        before = asked.peek([charge], now + moment)[0]
        assert not before.allowed
        assert moment + microseconds(before.retry_after) == wait, "the moment promised does not move"
    assert asked.check([charge], now_us=now + wait)[0].allowed


@given(data=st.data())
def test_the_full_quota_is_back_at_reset_after_and_not_before(asked: Engine, data: st.DataObject) -> None:
    limit = data.draw(limits())
    charge = Charge(fresh(), limit, data.draw(st.integers(1, capacity_of(limit))))
    now = used_up(asked, charge, data)
    wait = microseconds(asked.peek([charge], now)[0].reset_after)
    assert wait > 0
    assert asked.peek([charge], now + wait - 1)[0].remaining < capacity_of(limit)
    assert asked.peek([charge], now + wait)[0].remaining == capacity_of(limit)
    assert asked.peek([charge], now + wait)[0].reset_after == 0


@given(data=st.data())
def test_remaining_is_the_largest_cost_that_passes(asked: Engine, data: st.DataObject) -> None:
    limit = data.draw(limits())
    charge = Charge(fresh(), limit)
    now = used_up(asked, charge, data) + data.draw(st.integers(0, 2 * period_of(limit)))
    left = asked.peek([charge], now)[0].remaining
    assert 0 <= left <= capacity_of(limit)
    assert not asked.peek([charge._replace(cost=left + 1)], now)[0].allowed
    spent = asked.check([charge._replace(cost=left)], now_us=now)[0]
    assert (spent.allowed, spent.remaining) == (True, 0)


@given(data=st.data())
def test_peek_tells_what_check_would_and_changes_nothing(asked: Engine, data: st.DataObject) -> None:
    limit = data.draw(limits())
    charge = Charge(fresh(), limit, data.draw(costs(limit)))
    now = used_up(asked, charge._replace(cost=1), data) + data.draw(st.integers(0, 2 * period_of(limit)))
    told = asked.peek([charge], now)[0]
    assert asked.peek([charge], now)[0] == told
    done = asked.check([charge], now_us=now)[0]
    assert (done.allowed, done.retry_after, done.soft_exceeded) == (told.allowed, told.retry_after, told.soft_exceeded)
    assert done.remaining == told.remaining - done.spent


@given(data=st.data())
def test_a_refund_restores_what_was_there(asked: Engine, data: st.DataObject) -> None:
    limit = data.draw(limits())
    charge = Charge(fresh(), limit)
    now = used_up(asked, charge, data) + data.draw(st.integers(0, 2 * period_of(limit)))
    before = asked.peek([charge], now)
    cost = data.draw(st.integers(0, before[0].remaining))
    receipt = asked.check([charge._replace(cost=cost)], now_us=now)
    asked.refund(receipt)
    asked.refund(receipt)  # once is enough
    after = asked.peek([charge], now)
    for verdict in (*before, *after):
        verdict.spent_at_us = 0
    assert after == before
    assert receipt[0].spent == 0


@given(data=st.data())
def test_never_more_than_the_bound(asked: Engine, data: st.DataObject) -> None:
    """However greedy: windows admit their quota per window of the clock, buckets their burst and the refill."""
    limit = data.draw(limits())
    charge, now = Charge(fresh(), limit), HOUR
    spent: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 20))):
        verdict = asked.peek([charge], now)[0]
        cost = data.draw(st.just(verdict.remaining) | costs(limit))
        spent.append((now, asked.check([charge._replace(cost=cost)], now_us=now)[0].spent))
        now += abs(data.draw(pauses(now, limit)))
    tick, period = limit.terms.tick_us, period_of(limit)
    for first in range(len(spent)):
        total, begin = 0, spent[first][0]
        for moment, units in spent[first:]:
            total += units
            if limit.algorithm is Algorithm.TOKEN_BUCKET:
                ticks = (moment // tick - begin // tick) * tick
                assert total <= capacity_of(limit) + Fraction(ticks * limit.quota, period)
            elif moment // period == begin // period:
                assert total <= limit.quota
            elif moment // period == begin // period + 1:
                assert total <= 2 * limit.quota


@given(quota=st.integers(1, 40), window=windows, burst=st.none() | st.integers(1, 40), now=st.integers(0, 10**9))
def test_a_full_bucket_admits_its_burst_while_the_clock_stands(
    asked: Engine, quota: int, window: int, burst: int | None, now: int
) -> None:
    charge = Charge(fresh(), Limit(quota, window, Algorithm.TOKEN_BUCKET, burst))
    answers = [asked.check([charge], now_us=HOUR + now)[0].allowed for _ in range(2 * (burst or quota))]
    assert answers == [True] * (burst or quota) + [False] * (burst or quota)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_ordinary_limits_admit_their_quota_while_the_clock_stands(asked: Engine, algorithm: Algorithm) -> None:
    """The limits of which a time of arrival kept as a double admits one unit too few."""
    for quota in (1, 3, 5, 7, 9, 10, 11, 13, 60, 100, 300, 999):
        for window in (1, 3, 7, 10, 60, 3_600, 86_400):
            charge = Charge(fresh(), Limit(quota, window, algorithm))
            now = HOUR + 123_456_789
            assert asked.check([charge._replace(cost=quota - 1)], now_us=now)[0].allowed
            assert asked.check([charge], now_us=now)[0].allowed
            assert not asked.check([charge], now_us=now)[0].allowed


@given(data=st.data())
def test_a_clock_that_runs_back_stands_still(asked: Engine, data: st.DataObject) -> None:
    limit = data.draw(limits())
    charge = Charge(fresh(), limit)
    now = used_up(asked, charge._replace(cost=1), data)
    assume(asked.peek([charge], now)[0].spent_at_us == now)
    then = asked.peek([charge], now)[0]
    back = data.draw(st.integers(1, 3 * period_of(limit)))
    earlier = asked.peek([charge], now - back)[0]
    assert earlier.remaining == then.remaining
    for late, early in ((then.retry_after, earlier.retry_after), (then.reset_after, earlier.reset_after)):
        assert microseconds(early) == (microseconds(late) + back if late else 0)


@given(data=st.data())
def test_a_lowered_quota_makes_no_nonsense(asked: Engine, data: st.DataObject) -> None:
    """More is spent than the new quota holds: nothing remains, and the wait for one unit is true."""
    limit = Limit(data.draw(st.integers(10, 10_000)), data.draw(windows), data.draw(algorithms))
    charge = Charge(fresh(), limit, limit.quota)
    now = HOUR + data.draw(st.integers(0, period_of(limit)))
    asked.check([charge], now_us=now)
    lowered = charge._replace(cost=1, limit=Limit(data.draw(st.integers(1, 9)), limit.window, limit.algorithm))
    refused = asked.check([lowered], now_us=now)[0]
    assert (refused.allowed, refused.remaining) == (False, 0)
    wait = microseconds(refused.retry_after)
    assert not asked.peek([lowered], now + wait - 1)[0].allowed
    assert asked.peek([lowered], now + wait)[0].allowed


@given(data=st.data())
def test_a_refused_call_leaves_every_counter_as_it_was(redis_url: str, data: st.DataObject) -> None:
    with redis.Redis.from_url(redis_url) as client:
        mark = fresh()
        engine = RedisEngine(client, namespace=mark)

        def raw() -> dict[bytes, bytes | None]:
            return {key: client.get(key) for key in client.keys(f"{{{mark}:0}}:*")}

        chosen = data.draw(st.lists(limits(), min_size=2, max_size=4))
        charges = [
            Charge(f"key{number}", limit, gating=data.draw(st.booleans())) for number, limit in enumerate(chosen)
        ]
        now = HOUR
        for _ in range(data.draw(st.integers(1, 4))):
            engine.check([data.draw(st.sampled_from(charges))], now_us=now)
            now += abs(data.draw(pauses(now, chosen[0])))
        wanted = [charge._replace(cost=data.draw(costs(charge.limit))) for charge in charges]
        wanted[0] = wanted[0]._replace(cost=capacity_of(chosen[0]) + 1, gating=True)
        before = raw()
        told = engine.peek(wanted, now)
        refused = engine.check(data.draw(st.permutations(wanted)), now_us=now)
        assert raw() == before
        assert not any(verdict.spent or verdict.soft_exceeded for verdict in refused)
        assert _by_key(refused) == _by_key(told)


def _by_key(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.charge.key: verdict for verdict in verdicts}


def test_keys_are_not_mixed_up(asked: Engine) -> None:
    """Each key, algorithm and window has a counter of its own."""
    key = fresh()
    kinds = [Limit(5, window, algorithm) for window in (60, 61) for algorithm in Algorithm]
    charges = [Charge(key + more, limit, 2) for limit in kinds for more in ("", ":", ":token_bucket:60000000")]
    for _ in range(2):
        verdicts = asked.check(charges, now_us=HOUR)
    assert [verdict.remaining for verdict in verdicts] == [1] * len(charges)
    asked.reset(charges[:1])
    assert [verdict.remaining for verdict in asked.peek(charges, HOUR)] == [5] + [1] * (len(charges) - 1)


def test_counters_whose_quota_is_back_are_forgotten() -> None:
    """A MemoryEngine that meets ever new keys does not grow without end, and forgets nothing that counts."""
    engine = MemoryEngine()
    kept = Charge("kept", Limit(5, 86_400))
    engine.check([kept], now_us=HOUR)
    for number in range(5_000):
        engine.check([Charge(f"{number}", Limit(5, 1))], now_us=HOUR + number * 10_000)
    assert len(engine._counters) < 1_500
    assert engine.peek([kept], HOUR + 50_000_000)[0].remaining == 4


def test_the_engines_have_a_clock_of_their_own(redis_client: redis.Redis) -> None:
    clock = iter([7_000_000, 9_000_000]).__next__
    assert [verdict.at_us for verdict in MemoryEngine(clock).check([Charge("key", Limit(5, 60))])] == [7_000_000]
    seconds, rest = redis_client.time()
    engine = RedisEngine(redis_client, namespace="clock")
    first, second = (engine.check([Charge("key", Limit(5, 60))])[0].at_us for _ in range(2))
    moments = [seconds * 1_000_000 + rest, first, second, first + 60_000_000]
    assert all(earlier <= later for earlier, later in pairwise(moments))
