"""What is decided with a word from elsewhere: units that were admitted already, calls that are rejected already."""

from __future__ import annotations

import pytest

from django_ratelimiter.engine import Charge, Engine, Limit
from tests.engine.trio import HOUR

FIVE = Limit(5, 60, "fixed_window")
WINDOWS = [FIVE, Limit(5, 60), Limit(5, 60, "sliding_window_slots")]


def left(engine: Engine, *charges: Charge) -> list[int]:
    return [verdict.remaining for verdict in engine.peek(charges, HOUR)]


# Carried


@pytest.mark.parametrize("limit", WINDOWS)
def test_what_is_carried_is_spent_before_the_cost_is_decided(engine: Engine, limit: Limit) -> None:
    verdict = engine.check([Charge("key", limit, cost=1, carried=3)], now_us=HOUR)[0]
    assert (verdict.allowed, verdict.remaining, verdict.spent) == (True, 1, 1)
    verdict = engine.check([Charge("key", limit, cost=1, carried=1)], now_us=HOUR)[0]
    assert (verdict.allowed, verdict.remaining, verdict.spent) == (False, 0, 0)
    assert left(engine, Charge("key", limit)) == [0], "the call was rejected, and what it carried is spent"


def test_what_is_carried_is_spent_whoever_rejects(engine: Engine) -> None:
    engine.check([Charge("key", FIVE, carried=2), Charge("other", FIVE, cost=6)], now_us=HOUR)
    assert left(engine, Charge("key", FIVE)) == [3]
    engine.check([Charge("key", FIVE, cost=0, carried=1)], now_us=HOUR)
    assert left(engine, Charge("key", FIVE)) == [2]


@pytest.mark.parametrize("limit", WINDOWS)
@pytest.mark.parametrize("carried", [6, 2**48, 10**30])
def test_no_more_is_carried_than_the_capacity(engine: Engine, limit: Limit, carried: int) -> None:
    """So that nobody runs into debt."""
    engine.check([Charge("key", limit, 2)], now_us=HOUR)
    engine.check([Charge("key", limit, cost=0, carried=carried)], now_us=HOUR)
    assert left(engine, Charge("key", limit)) == [0]
    assert left(engine, Charge("key", Limit(9, 60, limit.algorithm))) == [4]


def test_a_peek_leaves_what_is_carried(engine: Engine) -> None:
    assert left(engine, Charge("key", FIVE, carried=2)) == [5]
    assert left(engine, Charge("key", FIVE)) == [5]


def test_a_refund_gives_back_what_the_call_spent_and_not_what_it_carried(engine: Engine) -> None:
    engine.refund(engine.check([Charge("key", FIVE, cost=2, carried=1)], now_us=HOUR))
    assert left(engine, Charge("key", FIVE)) == [4]


def test_what_is_carried_by_a_stale_call_is_not_spent(engine: Engine) -> None:
    with pytest.raises(Exception, match="version"):
        engine.check([Charge("key", FIVE, carried=2)], version=1, now_us=HOUR)
    assert left(engine, Charge("key", FIVE)) == [5]


@pytest.mark.parametrize("carried", [-1, True, 1.0, "1", None])
def test_bad_units(engine: Engine, carried: object) -> None:
    with pytest.raises(ValueError, match="carried: must be a whole number from 0"):
        engine.check([Charge("key", FIVE, carried=carried)])


# Rejected already


def test_a_call_that_is_rejected_already_spends_nothing(engine: Engine) -> None:
    """Its charges tell their own answers, and nothing of a soft quota, as in any rejected call."""
    charges = [Charge("key", Limit(5, 60, "fixed_window", soft_quota=1), 2), Charge("other", FIVE, cost=6)]
    verdicts = engine.check(charges, now_us=HOUR, reject=True)
    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert [verdict.spent for verdict in verdicts] == [0, 0]
    assert [verdict.soft_exceeded for verdict in verdicts] == [False, False]
    assert left(engine, *charges) == [5, 5]


def test_a_call_that_is_rejected_already_counts_refusals_and_spends_what_it_carries(engine: Engine) -> None:
    charges = [Charge("key", FIVE, 6, count_refusals=True), Charge("other", FIVE, carried=2, count_refusals=True)]
    engine.check(charges, now_us=HOUR, reject=True)
    assert left(engine, *charges) == [0, 3]


def test_a_call_that_is_rejected_already_gives_its_receipts_back(engine: Engine) -> None:
    receipts = engine.check([Charge("earlier", FIVE, 2)], now_us=HOUR)
    engine.check([Charge("key", FIVE)], now_us=HOUR, refund_if_denied=receipts, reject=True)
    assert left(engine, Charge("earlier", FIVE)) == [5]
    assert receipts[0].spent == 0


def test_a_call_that_is_rejected_already_is_counted_by_its_rules_own_answers(engine: Engine) -> None:
    engine.check([Charge("a", FIVE, usage="a|"), Charge("b", FIVE, 6, usage="b|")], now_us=HOUR, reject=True)
    (batch,) = engine.take_usage(now_us=HOUR + 60_000_000)
    counts = {count.label: (count.allowed, count.rejected) for count in engine.read_usage(batch)}
    assert counts == {"a|": (1, 0), "b|": (0, 1)}
