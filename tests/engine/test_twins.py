"""MemoryEngine, RedisEngine and the exact reference give the same answers, whatever they are asked."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, note, settings
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Charge, Limit
from tests.engine.strategies import changed, costs, limits, pauses, short_windows
from tests.engine.trio import Receipt, Trio

EXAMPLES = settings().max_examples

MakeTrio = Callable[[], Trio]


@given(data=st.data())
@settings(max_examples=2 * EXAMPLES)
def test_one_key(trio: MakeTrio, data: st.DataObject) -> None:
    limit = data.draw(limits())
    asked = trio()
    for _ in range(data.draw(st.integers(1, 15))):
        answer = asked.one(limit, data.draw(costs(limit)))
        asked.now += _next(data, asked.now, limit, answer.retry_after, answer.reset_after)


def _next(data: st.DataObject, now: int, limit: Limit, *moments: int | None) -> int:
    """A pause, or the way to a moment that the last answer has promised, or just before it."""
    promised = [moment + early for moment in moments if moment for early in (-1, 0)]
    return data.draw(st.sampled_from(promised) | pauses(now, limit) if promised else pauses(now, limit), "pause")


@st.composite
def charges(draw: st.DrawFn, limits_of_keys: dict[str, Limit]) -> list[Charge]:
    chosen = draw(st.lists(st.sampled_from(sorted(limits_of_keys)), min_size=1, max_size=4, unique=True))
    return [
        Charge(
            key,
            limits_of_keys[key],
            draw(costs(limits_of_keys[key])),
            gating=draw(st.sampled_from([True, True, False])),
            count_refusals=draw(st.sampled_from([False, False, True])),
        )
        for key in chosen
    ]


@given(data=st.data())
@settings(max_examples=3 * EXAMPLES)
def test_calls_of_several_charges(trio: MakeTrio, data: st.DataObject) -> None:
    """Mixed algorithms, shadow charges, counted refusals, receipts given back in every way, quotas changed."""
    asked = trio()
    keys = {f"k{number}": limit for number, limit in enumerate(data.draw(st.lists(limits(), min_size=1, max_size=4)))}
    receipts: list[Receipt] = []
    for _ in range(data.draw(st.integers(1, 12))):
        called = data.draw(charges(keys))
        match data.draw(st.sampled_from(["check", "check", "check", "peek", "refund"])):
            case "peek":
                asked.peek(called)
            case "refund" if receipts:
                asked.refund(data.draw(st.lists(st.sampled_from(receipts), max_size=3)))
            case _:
                given = data.draw(st.lists(st.sampled_from(receipts), max_size=3)) if receipts else []
                receipts += asked.check(called, refund_if_denied=given)
        limit = data.draw(st.sampled_from(called)).limit
        asked.now += _next(data, asked.now, limit, *([receipts[-1].reference.retry_after] if receipts else []))


@given(data=st.data())
def test_quotas_changed_half_way(trio: MakeTrio, data: st.DataObject) -> None:
    """What is spent stays spent. Windows are short here: for those the reference rounds as the engines do."""
    asked = trio()
    limit = data.draw(limits(short_windows))
    for _ in range(data.draw(st.integers(2, 12))):
        charge = Charge("key", limit, data.draw(costs(limit)), count_refusals=data.draw(st.booleans()))
        answer = asked.check([charge])[0].reference
        asked.now += _next(data, asked.now, limit, answer.retry_after, answer.reset_after)
        limit = data.draw(st.just(limit) | changed(limit))
        note(str(limit))


@given(data=st.data())
def test_small_numbers(trio: MakeTrio, data: st.DataObject) -> None:
    """Where edges are met all the time: up to five units in a window of up to six microseconds."""
    tiny = limits(st.integers(1, 6).map(lambda us: us / 1_000_000), st.integers(1, 5))
    asked = trio()
    keys = dict(zip("abc", data.draw(st.lists(tiny, min_size=3, max_size=3)), strict=True))
    receipts: list[Receipt] = []
    for _ in range(data.draw(st.integers(1, 25))):
        given = data.draw(st.lists(st.sampled_from(receipts), max_size=2)) if receipts else []
        if data.draw(st.booleans()):
            asked.refund(given)
            given = []
        receipts += asked.check(data.draw(charges(keys)), refund_if_denied=given)
        asked.now += data.draw(st.integers(-3, 7))


@given(data=st.data())
def test_a_changed_bucket_is_within_a_part_of_a_token(trio: MakeTrio, data: st.DataObject) -> None:
    """However long the window: both engines round alike, and tell a wait that is off by a tick at most."""
    buckets = st.just(Algorithm.TOKEN_BUCKET)
    before = data.draw(limits(algorithms=buckets))
    after = data.draw(changed(before))
    asked = trio()
    asked.one(before, data.draw(costs(before)))
    asked.now += data.draw(pauses(asked.now, before))
    charge = [Charge(f"{asked._mark}key", after, data.draw(costs(after)))]
    memory, redis = (engine.peek(charge, asked.now)[0] for engine in (asked.memory, asked.redis))
    assert memory == redis
    exact = asked.reference.peek(charge, asked.now)[0]
    assert abs(memory.remaining - exact.remaining) <= 1
    assert abs(memory.reset_after * 1_000_000 - exact.reset_after) <= after.terms.tick_us
