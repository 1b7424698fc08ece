"""The frame around the algorithms, alike on both engines: versions, and what is rejected as a mistake."""

from __future__ import annotations

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Engine, Limit, StaleRules, Version
from django_ratelimiter.engine.algorithms import STEPS
from django_ratelimiter.engine.redis import scripts
from tests.engine.trio import HOUR

FIVE = Limit(5, 60, "fixed_window")
BUCKET = Limit(5, 60, "token_bucket")


def left(engine: Engine, *charges: Charge) -> list[int]:
    return [verdict.remaining for verdict in engine.peek(charges, HOUR)]


# Versions


def stale(engine: Engine, version: int | Version) -> tuple[int | None, int]:
    """What the engine says to a caller of this version; it must call it stale."""
    with pytest.raises(StaleRules) as caught:
        engine.check([Charge("versioned", FIVE, usage="rule|")], version=version, now_us=HOUR)
    return caught.value.number, caught.value.epoch


def admits(engine: Engine, version: int | Version) -> bool:
    return engine.check([Charge("versioned", FIVE, cost=0)], version=version, now_us=HOUR)[0].allowed


def test_a_missing_version_is_stale_for_everybody(engine: Engine) -> None:
    assert stale(engine, 0) == (None, 0)
    assert stale(engine, Version(10**9, 1_795_000_000_000)) == (None, 0)
    engine.publish(3)
    assert admits(engine, 3)


def test_a_caller_behind_is_told_what_is_in_force_and_spends_nothing(engine: Engine) -> None:
    engine.publish(7)
    assert stale(engine, 6) == (7, 0)
    assert left(engine, Charge("versioned", FIVE)) == [5]
    assert engine.take_usage(now_us=HOUR + 120_000_000) == []
    assert admits(engine, 7)


def test_a_caller_ahead_raises_the_version(engine: Engine) -> None:
    engine.publish(9)
    assert admits(engine, 10)
    assert stale(engine, 9) == (10, 0)


def test_versions_are_numbers_not_texts(engine: Engine) -> None:
    engine.publish(10)
    assert stale(engine, 9) == (10, 0)
    engine.publish(Version(2**53 - 2, 9))
    assert stale(engine, Version(2**53 - 3, 9)) == (2**53 - 2, 9)
    assert admits(engine, Version(2**53 - 1, 9))


def test_publishing_never_goes_back(engine: Engine) -> None:
    engine.publish(5)
    engine.publish(4)
    engine.publish(5)
    assert stale(engine, 4) == (5, 0)
    assert admits(engine, 5)


def test_the_later_epoch_is_in_force_whatever_its_number(engine: Engine) -> None:
    """A database restored from a backup counts on from an older number, in an epoch of its own."""
    before, restored = Version(41, 1_790_000_000_000), Version(12, 1_795_000_000_000)
    engine.publish(before)
    engine.publish(restored)
    assert stale(engine, before) == (12, 1_795_000_000_000)
    assert stale(engine, Version(11, 1_795_000_000_000)) == (12, 1_795_000_000_000)
    engine.publish(before)
    assert admits(engine, restored)
    assert admits(engine, Version(1, 1_796_000_000_000))
    assert stale(engine, restored) == (1, 1_796_000_000_000)


def test_a_bare_number_is_a_version_of_epoch_0(engine: Engine) -> None:
    engine.publish(Version(3))
    assert admits(engine, 3)
    assert admits(engine, Version(4, 0))
    assert stale(engine, 3) == (4, 0)


def test_a_call_without_charges_asks_only_for_the_version(engine: Engine) -> None:
    engine.publish(3)
    assert engine.check([], version=3) == []
    with pytest.raises(StaleRules, match="version 3"):
        engine.check([], version=2)


def test_a_call_without_a_version_compares_none(engine: Engine) -> None:
    assert engine.check([Charge("key", FIVE)])[0].allowed
    engine.publish(3)
    assert engine.check([Charge("key", FIVE)])[0].allowed


def test_a_stale_call_gives_no_receipt_back(engine: Engine) -> None:
    earlier = engine.check([Charge("earlier", FIVE)], now_us=HOUR)
    with pytest.raises(StaleRules):
        engine.check([Charge("key", FIVE, cost=6)], version=1, refund_if_denied=earlier, now_us=HOUR)
    assert earlier[0].spent == 1
    assert left(engine, Charge("earlier", FIVE)) == [4]


# What is rejected as a mistake of the caller


@pytest.mark.parametrize("cost", [-1, True, False, 1.0, 0.5, "1", None])
def test_bad_costs(engine: Engine, cost: object) -> None:
    charges = [Charge("good", FIVE), Charge("bad", FIVE, cost)]
    for ask in (engine.check, engine.peek):
        with pytest.raises(ValueError, match="cost: must be a whole number from 0"):
            ask(charges)
    assert engine.peek(charges[:1])[0].remaining == 5


def test_the_same_key_and_limit_twice(engine: Engine) -> None:
    charge = Charge("key", FIVE)
    for ask in (engine.check, engine.peek):
        with pytest.raises(ValueError, match="add up their costs"):
            ask([charge, Charge("other", FIVE), charge._replace(cost=2)])
    with pytest.raises(ValueError, match="add up their costs"):
        engine.check([charge, Charge("key", Limit(9, 60, "fixed_window"))])
    assert len(engine.check([charge, Charge("key", BUCKET)])) == 2
    assert left(engine, Charge("other", FIVE)) == [5]


def test_keys_of_any_text(engine: Engine) -> None:
    charges = [Charge(key, FIVE) for key in ("", " ", "a\r\nb", "{x}", "naïve ключ 🔑", "%s", "a" * 3_000)]
    engine.check(charges, now_us=HOUR)
    assert left(engine, *charges) == [4] * len(charges)


def test_charges_may_come_one_by_one(engine: Engine) -> None:
    charge = Charge("one", Limit(1, 86_400, "fixed_window"))
    assert [engine.check(iter([charge]), now_us=0)[0].allowed for _ in range(2)] == [True, False]
    assert not engine.peek(iter([charge]), now_us=0)[0].allowed


STEPS_IN_LUA = {"whole", "look", "spend", "wait", "reset", "refund"}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_an_algorithm_has_every_step_and_no_other(algorithm: Algorithm) -> None:
    """A misspelled one would not be missed: the script would go on without it."""
    assert set(scripts._steps_of(algorithm)) == STEPS_IN_LUA
    assert all(callable(getattr(STEPS[algorithm], step)) for step in (*STEPS_IN_LUA - {"whole"}, "store"))


def test_the_frame_asks_for_every_step() -> None:
    frame = "".join((scripts._FRAMES / name).read_text("utf-8") for name in ("check.lua", "back.lua"))
    asked = {match[1] for match in scripts._STEP.finditer(frame)}
    assert asked == {*STEPS_IN_LUA, "traits", "back", "count", "rejected"}
    assert b"\n--@" not in scripts.CHECK
