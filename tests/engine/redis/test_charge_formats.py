"""Charges of no template: what their calls have in common is packed once a minute; the bytes are those of any other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Charge, Limit, MemoryEngine, Verdict, Version
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine, formats
from django_ratelimiter.engine.redis.formats import ChargeFormats
from django_ratelimiter.engine.redis.partition_notes import PartitionNote
from django_ratelimiter.engine.redis.protocol import CallEncoder, ScriptMode, decode, decode_check
from django_ratelimiter.exceptions import StaleRules
from tests.engine.trio import HOUR

LIMITS = [
    Limit(5, 60),
    Limit(5, 60, "token_bucket", burst=9),
    Limit(7, 3_600, "fixed_window", anchor="first_request"),
    Limit(9, 60, "sliding_window_log", soft_quota=2),
    Limit(4, 3_600, "sliding_window_slots"),
    Limit(2, 60, "concurrency"),
]
CHARGES = [
    Charge("first", LIMITS[0], usage="one|"),
    Charge("second", Limit(3, 3_600, "token_bucket"), gating=False, usage="two|"),
]
MINUTE = HOUR // 60_000_000


def charge_of(key: str, limit: Limit, gating: bool, label: str | None, counts_rejections: bool) -> Charge:
    return Charge(key, limit, gating=gating, usage=label, count_refusals=counts_rejections)


charges = st.builds(
    charge_of,
    st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["50 %", "%b%%d", "\x00hole of a key\x00"]),
    st.sampled_from(LIMITS),
    st.booleans(),
    st.sampled_from([None, "one|", "two|pro", "100 %|"]),
    st.booleans(),
)
calls = st.lists(charges, max_size=4, unique_by=lambda charge: (charge.key, charge.limit.tag))


@pytest.fixture
def engine(redis_client: redis.Redis) -> RedisEngine:
    engine = RedisEngine(redis_client, namespace="plain")
    engine.publish(1)
    return engine


class Packed:
    """Packs charges one by one, and by their format. times: how often a format was made."""

    def __init__(self, namespace: str = "rl") -> None:
        self.encoder, self.times = CallEncoder(namespace), 0
        self.formats = ChargeFormats(f"{{{namespace}:0}}:", self.encode)

    def encode(
        self, asked: Sequence[Charge], version: int | Version | None, minute: int, notes: Sequence[PartitionNote] = ()
    ) -> bytes:
        self.times += 1
        return self.encoder.encode(ScriptMode.CHECK, asked, (), version, None, (minute * 60_000_000,), notes=notes)


@given(st.lists(calls, min_size=1, max_size=4), st.sampled_from(["rl", "50 %", "%b"]))
def test_the_bytes_are_those_of_a_call_packed_by_itself(lists: list[list[Charge]], namespace: str) -> None:
    packed = Packed(namespace)
    for minute in (MINUTE, MINUTE + 1):
        for version in (1, 2, None):
            for asked in lists:
                expected = packed.encode(asked, version, minute)
                assert packed.formats.fill(asked, version, minute) == expected
                assert packed.formats.fill(asked, version, minute) == expected


def test_what_calls_have_in_common_is_packed_once() -> None:
    packed = Packed()
    for number in range(10):
        packed.formats.fill([each._replace(key=f"{each.key}:{number}") for each in CHARGES], 1, MINUTE)
    assert packed.times == 1


@pytest.mark.parametrize(
    "asked",
    [
        [Charge("day", Limit(5, calendar="day", algorithm="fixed_window"))],
        [Charge("held", Limit(5, 60, "leaky_bucket"), max_delay=1.0)],
        [Charge("two", LIMITS[0], cost=2)],
        [Charge("none", LIMITS[0], cost=0)],
        [Charge("true", LIMITS[0], cost=True)],
        [Charge("float", LIMITS[0], cost=1.0)],  # type: ignore[arg-type]
        [Charge("carrying", LIMITS[0], carried=3)],
        [CHARGES[0], CHARGES[0]],
    ],
    ids=lambda asked: asked[0].key,
)
def test_what_differs_from_call_to_call_or_is_wrong_is_packed_by_itself(asked: list[Charge]) -> None:
    assert Packed().formats.fill(asked, 1, MINUTE) is None


def test_a_counter_named_twice_is_an_error(engine: RedisEngine) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="occur twice in one call"):
            engine.check([CHARGES[0], CHARGES[0]], version=1)


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "MAX_CHARGE_FORMATS", 10)
    packed = Packed()
    for number in [*range(10), 0, 10, 0]:  # the eleventh has all others forgotten
        packed.formats.fill([Charge("key", Limit(5 + number, 60))], 1, MINUTE)
    assert packed.times == 12


def told(verdicts: Sequence[Verdict]) -> list[tuple[object, ...]]:
    return [(each.allowed, each.remaining, each.retry_after, each.reset_after, each.soft_exceeded) for each in verdicts]


def test_they_decide_as_the_memory_engine_does(engine: RedisEngine) -> None:
    memory = MemoryEngine(lambda: at_us)
    asked = [Charge("key", limit, usage="one|") for limit in LIMITS]
    for _ in range(4):
        mine = engine.check(asked, version=1)
        at_us = mine[0].at_us
        assert told(mine) == told(memory.check(asked))
    assert not mine[-1].allowed


def test_on_an_event_loop(engine: RedisEngine, redis_url: str) -> None:
    async def check() -> list[bool]:
        client = redis.asyncio.Redis.from_url(redis_url)
        mine = AsyncRedisEngine(client, "plain")
        allowed = [(await mine.check(CHARGES, version=1))[0].allowed for _ in range(6)]
        await mine.aclose()
        await client.aclose()
        return allowed

    assert asyncio.run(check()) == [True] * 5 + [False]


def test_a_later_version_is_heard_of(engine: RedisEngine) -> None:
    engine.check(CHARGES, version=1)
    engine.publish(2)
    with pytest.raises(StaleRules):
        engine.check(CHARGES, version=1)


@given(
    st.lists(
        st.tuples(
            charges | st.just(Charge("held", Limit(5, 60, "leaky_bucket"), max_delay=2.0)),
            st.integers(0, 9),
            st.integers(0, 90_000_000),
        ),
        max_size=4,
    )
)
def test_short_replies_are_read_as_the_long_ones(states: list[tuple[Charge, int, int]]) -> None:
    asked = [charge for charge, *_ in states]
    short = [HOUR, *[number for _, remaining, reset in states for number in (remaining, reset)]]
    long = [HOUR, *[number for _, remaining, reset in states for number in (remaining, 0, reset, 0)]]
    assert decode_check(asked, short) == decode(long, asked, spending=True)
