"""Filled charges: the call of a template, with a caller's partitions in its holes, is the call of its charges."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import example, given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, Limit, StaleRules, partition_stats
from django_ratelimiter.engine.call import Answer, Call, CallTemplate, ChargeTemplate
from django_ratelimiter.engine.limits import MAX_UNITS
from django_ratelimiter.engine.redis import RedisEngine, packing, partition_notes
from django_ratelimiter.engine.redis.protocol import CallEncoder, ScriptMode

ALICE, BOB = "a" * 22, "b" * 22
LIMITS = [
    Limit(5, 3_600),
    Limit(3, 86_400, "token_bucket", burst=4),
    Limit(2, 86_400, "fixed_window", anchor="first_request"),
    Limit(9, 3_600, "sliding_window_log", soft_quota=1),
    Limit(4, 3_600, "sliding_window_slots"),
    Limit(2, 3_600, "concurrency"),
]


def template(*limits: Limit, name: str = "rule", **options: Any) -> CallTemplate:
    return CallTemplate(
        [
            ChargeTemplate(f"{name}-{number}:", ":1", Charge("", limit, usage=f"{name}-{number}|", **options))
            for number, limit in enumerate(limits)
        ]
    )


def fill(call: CallTemplate, partition: str = ALICE) -> Call:
    return Call(call, (partition,) * len(call.templates))


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    engine = RedisEngine(redis_client, namespace="formats")
    engine.publish(1)
    return engine


def test_of_more_charges_than_a_byte_can_number_the_first_are_noted(
    engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_notes, "is_sampled", lambda _partition: False)
    call = template(*(Limit(9, window) for window in range(3_600, 3_860)))
    for left in (8, 7, 6):
        verdicts = engine.check(fill(call), version=1)
        assert [verdict.remaining for verdict in verdicts] == [left] * 260
    assert type(verdicts) is Answer
    hours = [(int(verdicts[0].at_us // partition_stats.HOUR_US), f"rule-{number}") for number in (0, 254, 255)]
    weights = engine.partitions.top_partitions(hours, 5)
    assert weights == [{ALICE: (3, 0)}, {ALICE: (3, 0)}, {}]


def test_stale_rules_are_heard_of_and_lost_memory_is_counted_anew(
    engine: RedisEngine, redis_client: redis.Redis
) -> None:
    call = template(Limit(4, 3_600))
    for _ in range(3):
        engine.check(fill(call), version=1)
    engine.publish(2)
    with pytest.raises(StaleRules):
        engine.check(fill(call), version=1)
    redis_client.flushall()
    with pytest.raises(StaleRules):
        engine.check(fill(call), version=2)
    engine.publish(2)
    assert engine.partitions.hours() == set()
    engine.check(fill(call), version=2)
    assert {each for _, each in engine.partitions.hours()} == {"rule-0"}


def test_names_may_hold_what_formats_mean_something_by(engine: RedisEngine) -> None:
    call = template(Limit(5, 3_600), name="100%b %s %%")
    assert [engine.check(fill(call), version=1)[0].remaining for _ in range(4)] == [4, 3, 2, 1]
    assert engine.peek(list(fill(call)))[0].remaining == 1


@pytest.mark.parametrize("partition", ["short", "ä" * 22, "much longer than any digest is"])
def test_partitions_of_another_length_are_packed_one_by_one(engine: RedisEngine, partition: str) -> None:
    call = template(Limit(5, 3_600))
    assert [engine.check(fill(call, partition), version=1)[0].remaining for _ in range(4)] == [4, 3, 2, 1]


def test_limits_whose_terms_change_are_packed_one_by_one(engine: RedisEngine) -> None:
    call = template(Limit(5, calendar="month", algorithm="fixed_window"), Limit(60, 60, "leaky_bucket", burst=5))
    found = [[each.remaining for each in engine.check(fill(call), version=1)] for _ in range(3)]
    assert [first for first, _ in found] == [4, 3, 2]


def test_two_charges_for_one_counter_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="occur twice"):
        CallTemplate([ChargeTemplate("rule:", "", Charge("", Limit(5, 60), usage="rule|"))] * 2)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_FORMATS", 2)
    packed: list[str] = []

    def encode(charges: Sequence[Charge], *_others: object) -> bytes:
        packed.append(charges[0].key[:6])
        return charges[0].key.encode()

    unlabelled = Charge("", LIMITS[0])
    calls = {name: CallTemplate([ChargeTemplate(f"{name}-0:", ":1", unlabelled)]) for name in "ab"}
    kept = packing.CallFormats(encode)
    for name in "ab":
        for weight in (0, 0, 1, 1, 2, 2, 0):
            assert kept.fill(fill(calls[name]), None, 1, (weight, 0)) == f"{name}-0:{ALICE}:1".encode()
    assert [key[0] for key in packed] == ["a"] * 4 + ["b"] * 4


@given(units=st.lists(st.integers(0, MAX_UNITS), min_size=6, max_size=6))
@example(units=[0] * 6)
@example(units=[9, 37, 0, 293, 4, 5])  # "%" among the bytes
def test_a_call_that_wants_units_is_packed_once_however_many_they_are(units: list[int]) -> None:
    packed, encoder = 0, CallEncoder("formats")

    def encode(charges: Sequence[Charge], version: Any, minute: int, notes: Any) -> bytes:
        nonlocal packed
        packed += 1
        return encoder.encode(ScriptMode.CHECK, charges, (), version, None, (minute * 60_000_000,), notes=notes)

    kinds = [{"gating": gating, "count_refusals": counts} for gating in (True, False) for counts in (True, False)]
    charges = [
        ChargeTemplate(f"rule-{number}:", ":1", Charge("", limit, cost=number, usage="rule|", **kinds[number % 4]))
        for number, limit in enumerate(LIMITS)
    ]
    kept, filled = packing.CallFormats(encode), fill(CallTemplate(charges))
    for wants in ((1,) * 6, tuple(units)):
        fetching = Call(filled.template, filled.partitions, wants)
        assert kept.fill(fetching, 1, 7, (0, 0)) == encode(fetching, 1, 7, ())
    assert packed == 3  # two of them by this test itself


HOUR_US = 3_600_000_000
NOW_US = 490_000 * HOUR_US
CALLERS = [f"{number:022}" for number in range(70)]
SHARED = "0" * 21 + "_"


def template_of_callers() -> CallTemplate:
    """A rule of two limits, one of one limit, one that all callers share, and one that is not counted."""
    hour, day = Limit(2, 86_400, "fixed_window"), Limit(1_000, 86_400, "token_bucket")
    made = [("two", hour, "two|", True), ("two", day, "two|", True), ("one", day, "one|pro", True)]
    made += [("all", day, "all|", False), ("none", day, None, True)]
    return CallTemplate(
        [ChargeTemplate(f"{name}:", "", Charge("", limit, usage=label), split) for name, limit, label, split in made]
    )


def visits() -> list[Call]:
    call, choice = template_of_callers(), random.Random(5)
    places = [(name, name, name, SHARED, name) for name in choice.choices(CALLERS, k=150)]
    return [Call(call, each) for each in places]


def recorded(engine: RedisEngine) -> tuple[Any, ...]:
    stats = engine.partitions
    hours = sorted(stats.hours())
    samples = Counter[tuple[str, str]]()
    for found in stats.samples(2**40).values():  # of two minutes, if one ends meanwhile
        samples.update(found)
    return hours, stats.top_partitions(hours, 100), samples


def test_what_is_recorded_is_that_of_their_charges(redis_client: redis.Redis) -> None:
    engine, one_by_one = RedisEngine(redis_client, "new"), RedisEngine(redis_client, "usual")
    verdicts = [engine.check(each) for each in visits()]
    assert sum(type(each) is Answer for each in verdicts) > 100
    for each in visits():
        one_by_one.check(list(each))
    assert recorded(engine) == recorded(one_by_one)


def test_a_call_that_only_asks_for_the_version_tells_nothing(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However busy the process is: requests that no rule matches make such calls."""
    monkeypatch.setattr(partition_notes, "WEIGHED_EXACTLY", 0)
    monkeypatch.setattr(partition_notes, "randrange", lambda _least, _end: 3)  # each third call is weighed
    engine = RedisEngine(redis_client, "empty")
    seen = [
        each.part([place])
        for each in visits()
        for place, charge in enumerate(each)
        if charge.usage and charge.usage.startswith("one|")
    ]
    for charges in seen:
        engine.check(charges)
        assert engine.check((), version=None) == []
    hours = sorted(engine.partitions.hours())
    [weights] = engine.partitions.top_partitions([each for each in hours if each[1] == "one"], 100)
    assert sum(map(sum, weights.values())) == len(seen) // 3 * 16
