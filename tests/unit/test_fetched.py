"""Calls with a word from elsewhere: units that are wanted in advance or given back, and that are rejected already."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimiter.engine import Charge, Engine, Limit
from django_ratelimiter.engine.call import Answer, Call
from tests.engine.trio import HOUR

FIVE = Limit(5, 60, "fixed_window")
MANY = Charge("key", Limit(100, 60, "fixed_window"))


def left(engine: Engine, *charges: Charge) -> list[int]:
    return [verdict.remaining for verdict in engine.peek(charges, HOUR)]


def ask(engine: Any, *charges: Charge, wants: tuple[int, ...] = (), returned: Any = (), **options: Any) -> Any:
    return engine.check(Call.of(charges).fetching(wants, tuple(returned)), now_us=HOUR, **options)


# Units in advance


@pytest.mark.parametrize(("want", "taken"), [(1, 1), (12, 12), (13, 12), (10**30, 12)])
def test_an_allowed_call_takes_at_most_an_eighth_of_what_is_left(engine: Engine, want: int, taken: int) -> None:
    answer = ask(engine, MANY._replace(cost=4), wants=(want,))
    assert (list(answer.taken), answer[0].remaining, answer[0].spent) == ([taken], 96 - taken, 4)
    assert left(engine, MANY) == [96 - taken]


def test_a_cost_of_0_and_a_peek_take_nothing(engine: Any) -> None:
    assert list(ask(engine, MANY._replace(cost=0), wants=(5,)).taken) == [0]
    assert engine.peek(Call.of([MANY]).fetching((5,)), HOUR)[0].remaining == 100
    assert left(engine, MANY) == [100]


# Units given back


def test_what_is_returned_is_given_back_before_the_cost_is_decided(engine: Engine) -> None:
    receipts = ask(engine, Charge("key", FIVE, 5)).listed()
    answer = ask(engine, Charge("key", FIVE, 4), returned=receipts)
    assert (answer[0].allowed, answer[0].remaining, receipts[0].spent) == (True, 1, 0)
    assert ask(engine, Charge("key", FIVE, 1), returned=receipts)[0].remaining == 0, "given back twice"


def test_a_stale_call_gives_nothing_back(engine: Any) -> None:
    receipts = ask(engine, Charge("key", FIVE, 3)).listed()
    with pytest.raises(Exception, match="version"):
        ask(engine, MANY, returned=receipts, version=1)
    assert (left(engine, Charge("key", FIVE)), receipts[0].spent) == ([2], 3)


@pytest.mark.parametrize("reply", [[1, 2, 3], [1, 2, 0, 3, 0], [1, 2, 0, 3, 0, 9, 9]])
def test_a_reply_that_does_not_tell_what_was_taken_is_none(reply: list[int]) -> None:
    with pytest.raises(ValueError, match="reply"):
        Answer(Call.of([MANY]).fetching((1,)), reply)


# Rejected already


def test_a_call_that_is_rejected_already_counts_as_rejected_by_its_rules_or_by_another(engine: Engine) -> None:
    engine.check([Charge("a", FIVE, usage="a|"), Charge("b", FIVE, 6, usage="b|")], now_us=HOUR, reject=True)
    (batch,) = engine.take_usage(now_us=HOUR + 60_000_000)
    counts = {
        count.label: (count.allowed, count.rejected, count.rejected_by_other) for count in engine.read_usage(batch)
    }
    assert counts == {"a|": (0, 0, 1), "b|": (0, 1, 0)}
