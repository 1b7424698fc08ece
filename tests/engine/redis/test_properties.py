"""What an answer promises, where only Redis itself can show it: no byte changed, the time to live, the clock."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Limit, MemoryEngine, Verdict
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.asking import fresh
from tests.engine.strategies import cost_by, costs, limit_by, limits, pause_by
from tests.engine.trio import HOUR
from tests.reference import capacity_of, period_of


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


@pytest.mark.parametrize("algorithm", Algorithm)
@given(random=st.randoms(use_true_random=False))
def test_redis_remembers_until_the_quota_is_back_and_hardly_longer(
    redis_url: str, algorithm: Algorithm, random: Random
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        mark = fresh()
        engine, limit = RedisEngine(client, namespace=mark), limit_by(random, algorithm)
        charge, now = Charge("key", limit, count_refusals=random.randrange(2) == 0), HOUR
        for _ in range(random.randint(1, 6)):
            cost = max(cost_by(random, limit), 1)
            verdict = engine.check([charge._replace(cost=cost)], now_us=now)[0]
            if not (verdict.spent or (charge.count_refusals and not verdict.allowed)):
                continue
            assert verdict.reset_after * 1_000 < client.pttl(f"{{{mark}:0}}:key{limit.tag}")
            assert client.pttl(f"{{{mark}:0}}:key{limit.tag}") <= verdict.reset_after * 1_000 + 10_001
            now += pause_by(random, now, limit)
