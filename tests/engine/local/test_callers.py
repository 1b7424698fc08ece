"""Callers who come once, again, or at once: what is kept of them, and what all of them together may use."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, EngineUnavailable
from django_ratelimiter.engine.call import Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.redis import RedisEngine

from .test_prefetch import ALGORITHMS
from .world import INTERVAL, Clock, Counted, Process, charge, counts, held, over


def rules(caller: str) -> Call:
    """What a caller is charged: by two rules of its own, and by one that all callers share."""
    return Call(TEMPLATE, (f"user {caller}", f"ip {caller}", ""))


def template(*names: str, shared: str = "all") -> CallTemplate:
    return CallTemplate(
        [
            ChargeTemplate(f"{name}:", "", charge(900, "", partition="", usage=f"{name}|"), name != shared)
            for name in (*names, shared)
        ]
    )


TEMPLATE = template("user", "ip")


def remaining(one: Any, charges: Any) -> list[int]:
    return [each.remaining for each in one.check(charges)]


def test_of_a_first_request_only_the_partitions_are_kept(process: Process, engine: Counted) -> None:
    one, asked = process(), [rules(f"{number}") for number in range(5)]
    for each in asked:
        assert one.check(each)[2].allowed
    assert engine.calls == asked
    assert list(one.counters.seen) == [f"{kind} {number}" for number in range(5) for kind in ("user", "ip")]
    one.flush()
    assert (len(engine.calls), one.counters.hands) == (5, {})
    assert counts(engine)["all"] == (5, 0, 0, 0)


def test_the_second_one_fetches_and_the_third_is_decided_here(process: Process, engine: Counted) -> None:
    one = process()
    assert [remaining(one, rules("ann")) for _ in range(4)] == [[899] * 3, [898] * 3, [897] * 3, [896] * 3]
    assert [call.wants for call in engine.calls] == [(), (1, 1, 1), (3, 3, 3)]
    assert remaining(one, rules("ben")) == [899, 899, 892], "what is in hand counts as used"


def test_a_caller_with_two_rules_has_not_come_twice(process: Process) -> None:
    one = process()
    one.check([charge(9, "minute:ann", partition="ann"), charge(9, "hour:ann", partition="ann")])
    assert (list(one.counters.seen), one.counters.hands) == (["ann"], {})


def test_those_who_come_often_to_one_view_make_nothing_of_those_who_come_once_to_another(process: Process) -> None:
    """Else each of the latter would pay for the counter that they share with all others."""
    one, often, once = process(), template("often", shared="all of often"), template("once", shared="all of once")
    for number in range(5):
        one.check(Call(once, (f"once{number}", "all of once")))
        one.check(Call(often, ("often", "all of often")))
    assert {name.partition(":")[0] for name in one.counters.hands} == {"often", "all of often"}


def test_views_with_nothing_but_a_shared_counter_fetch_in_turn(process: Process, engine: Counted) -> None:
    one, views = process(), [template(shared=name) for name in "ab"]
    for _ in range(7):
        for each in views:
            one.check(Call(each, ("all",)))
    assert len(engine.calls) == 6


@given(
    seed=st.integers(0, 2**32),
    quota=st.integers(1, 60),
    calm=st.sampled_from([0.5, 0.9, 1.0]),
    fails=st.sampled_from([0, 0.2]),
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_processes_never_exceed_the_quota(seed: int, quota: int, calm: float, fails: float, algorithm: str) -> None:
    """However calls overlap, as those of several threads do, with refunds, and with replies that are lost."""
    clock, chance = Clock(), random.Random(seed)
    engine, asked = Counted(clock), charge(quota, window=86_400, partition="key", algorithm=algorithm, usage="rule|")
    ones, used, rejected = [over(engine, clock) for _ in range(3)], 0, 0

    def hit(depth: int = 0) -> None:
        nonlocal used, rejected
        clock.now += chance.choice([0.0, 0.001, 0.1, INTERVAL])
        if depth < 3 and chance.random() > calm:
            more = chance.randrange(6)
            engine.during = lambda: [hit(depth + 1) for _ in range(more)]
        engine.down, engine.lost = chance.random() < fails, chance.random() < fails
        cost, one = chance.choice([1, 1, 1, 2, 0]), chance.choice(ones)
        with suppress(EngineUnavailable):
            [verdict] = one.check([asked._replace(cost=cost)])
            used += cost if verdict.allowed else 0
            rejected += not verdict.allowed
            if verdict.spent and chance.random() < 0.1:
                engine.down = engine.lost = False
                one.refund([verdict])
                used -= cost
        engine.during, engine.down, engine.lost = None, False, False

    for _ in range(150):
        hit()
        assert used <= quota + clock.now * quota / 86_400  # what a bucket has got back
    for each in ones:
        each.flush()
    if not fails and algorithm not in ("token_bucket", "gcra"):
        assert held(engine, asked) == used
        assert counts(engine)["rule"][1] == rejected


def no_charge(_charges: Call) -> list[Charge]:
    raise AssertionError("No charge need be made.")


def test_who_passes_is_counted_without_making_a_charge(engine: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    one = over(engine, Clock())
    for _ in range(4):
        one.check(rules("a"))
    monkeypatch.setattr(Call, "_fill", no_charge)
    answer = one.check(rules("a"))
    assert (answer.is_local, list(answer.states.remaining)) == (True, [895] * 3)


def test_a_first_request_makes_none_either(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, call = RedisEngine(redis_client, "filled"), Call(TEMPLATE, ("a" * 22, "b" * 22, "c" * 22))
    for _ in range(2):  # in the first, the partitions are new in this hour
        engine.check(call)
    monkeypatch.setattr(Call, "_fill", no_charge)
    answer = over(engine, Clock()).check(call)
    assert (answer.is_local, list(answer.states.remaining)) == (False, [897] * 3)
