"""Units fetched in advance, on a virtual clock: what is decided here, what is asked, what is given back when."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimiter.engine import EngineUnavailable, Limit, StaleRules

from .world import INTERVAL, START_US, WINDOW, Clock, Counted, Process, admitted, charge, counts, held

ALGORITHMS = [
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_slots",
    "sliding_window_log",
    "token_bucket",
    "gcra",
]


def wants(engine: Counted) -> list[tuple[int, ...]]:
    return [call.wants for call in engine.calls]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_calls_want_twice_as_many_until_there_are_enough(process: Process, engine: Counted, algorithm: str) -> None:
    one, asked = process(), charge(10_000, algorithm=algorithm)
    found = [one.check([asked])[0] for _ in range(20)]
    assert [each.remaining for each in found] == [*range(9_999, 9_979, -1)]
    assert wants(engine) == [(), (1,), (3,), (7,), (15,)]
    assert held(engine, asked) == 1 + 2 + 4 + 8 + 16


def test_the_next_interval_gives_back_the_rest_and_wants_half_as_much_again(
    process: Process, engine: Counted, clock: Clock
) -> None:
    one, asked = process(), charge(1_000)
    admitted(one, asked, 20)
    clock.now += INTERVAL
    assert one.check([asked])[0].remaining == 979
    assert engine.calls[-1].wants == (29,)  # 19 were asked for since the second request: 30 with this one
    assert held(engine, asked) == 20 + 30
    assert admitted(one, asked, 29) == 29
    assert len(engine.calls) == 6


def test_who_comes_once_an_interval_is_as_new_again_after_some(process: Process, engine: Counted, clock: Clock) -> None:
    one, asked = process(), charge(100)
    admitted(one, asked, 3)
    for _ in range(20):
        clock.now += INTERVAL
        one.check([asked])
    assert wants(engine)[-10:] == [()] * 10
    assert engine.calls[-1].returned == ()


class TestScarce:
    def test_a_flood_makes_one_call_an_interval_and_is_told_when_it_is_over(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked = process(), charge(10)
        assert admitted(one, asked, 500) == 4  # an eighth of what was left once the third call was allowed is none
        assert wants(engine) == [(), (1,), (3,)]
        clock.now += INTERVAL / 4
        assert one.check([asked])[0].retry_after == INTERVAL * 3 / 4
        for calls in range(4, 20):
            clock.now += INTERVAL
            admitted(one, asked, 500)
            assert len(engine.calls) == calls
        assert held(engine, asked) == 10
        until_window_ends = WINDOW - START_US // 1_000_000 % WINDOW - clock.now
        assert one.check([asked])[0].retry_after == until_window_ends

    def test_an_eighth_of_much_is_not_scarce(self, process: Process, engine: Counted) -> None:
        one = process()
        assert admitted(one, charge(1_000), 400) == 400
        assert wants(engine)[-2:] == [(127,), (127,)]

    def test_a_rejection_is_repeated_for_its_costs_until_the_interval_is_over(
        self, process: Process, engine: Counted
    ) -> None:
        other, one, asked = process(), process(), charge(100)
        other.check([asked._replace(cost=90)])
        one.check([asked])
        assert not one.check([asked._replace(cost=10)])[0].allowed
        calls = len(engine.calls)
        assert admitted(one, asked._replace(cost=10), 50) == 0
        assert len(engine.calls) == calls
        assert one.check([asked._replace(cost=9)])[0].allowed

    def test_a_cost_that_never_fits_is_rejected_here(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(100)
        admitted(one, asked, 2)
        assert [one.check([asked._replace(cost=101)])[0].retry_after for _ in range(3)] == [None] * 3
        assert len(engine.calls) == 2

    def test_beside_a_charge_that_rejects_the_others_cost_no_call(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, tight, wide = process(), charge(1, "tight"), charge(900, "wide")
        for _ in range(3):
            assert len({tuple(each.allowed for each in one.check([tight, wide])) for _ in range(50)}) <= 2
            calls = len(engine.calls)
            found = one.check([tight, wide])
            assert [(each.allowed, each.spent) for each in found] == [(False, 0), (True, 0)]
            assert len(engine.calls) == calls
            clock.now += INTERVAL
        assert (held(engine, wide), len(engine.calls)) == (1, 4)

    def test_meanwhile_a_call_of_another_thread_lets_the_flood_wait(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked, found = process(), charge(10), []
        admitted(one, asked, 50)
        clock.now += INTERVAL
        engine.during = lambda: found.extend(one.check([asked])[0] for _ in range(5))
        admitted(one, asked, 1)
        assert [(each.allowed, each.retry_after) for each in found] == [(False, 0.001)] * 5
        assert len(engine.calls) == 4

    def test_while_a_call_fetches_others_are_exact(self, process: Process, engine: Counted) -> None:
        one, asked, found = process(), charge(1_000), []
        admitted(one, asked, 1)
        engine.during = lambda: found.extend(one.check([asked])[0] for _ in range(3))
        admitted(one, asked, 1)
        assert wants(engine) == [(), (), (), (), (1,)]
        assert [each.allowed for each in found] == [True] * 3


class TestGivenBack:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_by_any_later_call(self, process: Process, engine: Counted, clock: Clock, algorithm: str) -> None:
        one, asked = process(), charge(1_000, algorithm=algorithm, window=86_400)
        admitted(one, asked, 5)
        assert held(engine, asked) == 7
        clock.now += INTERVAL
        one.check([charge(key="other", sync_interval=None)])
        assert held(engine, asked) == 5
        calls = len(engine.calls)
        one.flush()
        assert len(engine.calls) == calls

    def test_of_many_counters_some_with_each_call(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, keys = process(), [charge(100, f"key{number}") for number in range(120)]
        for asked in keys:
            admitted(one, asked, 2)
        clock.now += INTERVAL
        for left in (70, 20, 0):
            one.check([charge(key="other", sync_interval=None)])
            assert sum(held(engine, asked) for asked in keys) == 240 + left

    def test_by_a_process_that_is_idle(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(1_000, sync_interval=5.0, usage="rule|")
        admitted(one, asked, 5)
        clock.now += 0.4
        one.counters.give_back(one.counters.now())
        assert held(engine, asked) == 7
        clock.now += 0.1
        one.counters.give_back(one.counters.now())
        assert (held(engine, asked), counts(engine)) == (5, {"rule": (3, 0, 0, 0)})
        clock.now += 0.5
        one.counters.give_back(one.counters.now())
        assert counts(engine) == {"rule": (2, 0, 0, 0)}

    def test_at_the_end_of_the_process_with_all_usage(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(1_000, usage="rule|")
        admitted(one, asked, 5)
        one.flush()
        assert (held(engine, asked), counts(engine)) == (5, {"rule": (5, 0, 0, 0)})
        engine.down = True
        admitted(one, charge(1_000, sync_interval=-1.0, usage="rule|"), 2)
        one.flush()

    def test_where_units_are_scarce_before_an_exact_rule_is_asked(self, process: Process, engine: Counted) -> None:
        one, asked, exact = process(), charge(15), charge(100, "exact", sync_interval=None)
        admitted(one, asked, 4)
        assert held(engine, asked) == 5  # of three more that the last call wanted it got one, an eighth of 11
        one.check([asked, exact])
        assert (held(engine, asked), engine.calls[-1].returned[0].charge.key) == (5, "key")

    def test_an_ended_window_takes_its_units_with_it(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(1_000, window=60)
        clock.now = 60 - START_US // 1_000_000 % 60 - 0.25
        admitted(one, asked, 5)
        clock.now += 0.25
        assert one.check([asked])[0].remaining == 999
        assert held(engine, asked) == engine.calls[-1].wants[0] + 1

    def test_to_their_shard(self, process: Process, engine: Counted, clock: Clock) -> None:
        engine.shards, engine.shard_of = 2, lambda charge: int(charge.key[-1])
        one = process()
        for key in ("a0", "b1"):
            admitted(one, charge(100, key), 2)
        clock.now += INTERVAL
        for key, left in (("c0", [1, 2]), ("c1", [1, 1])):
            one.check([charge(key=key, sync_interval=None)])
            assert [held(engine, charge(100, key)) - 1 for key in ("a0", "b1")] == left
        one.check([])


class TestRefunds:
    def test_go_back_into_the_hand(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(1_000)
        admitted(one, asked, 3)
        spent = one.check([asked])
        for _ in range(2):
            one.refund(spent)
        assert (spent[0].spent, one.check([asked])[0].remaining, len(engine.calls)) == (0, 996, 3)

    def test_go_to_the_engine_once_the_hand_is_another(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(1_000)
        admitted(one, asked, 3)
        spent = one.check([asked])
        clock.now += INTERVAL
        one.check([asked])
        before = held(engine, asked)
        one.refund(spent)
        assert held(engine, asked) == before - 1

    def test_a_rejected_call_refunds_what_an_earlier_one_spent_here(self, process: Process, engine: Counted) -> None:
        one, near, tight = process(), charge(1_000), charge(1, "tight", sync_interval=None)
        admitted(one, near, 3)
        one.check([tight])
        earlier, before = one.check([near]), held(engine, near)
        assert not one.check([tight], refund_if_denied=earlier)[0].allowed
        assert (earlier[0].spent, held(engine, near)) == (0, before - 1)

    def test_a_rejection_here_is_asked_for_if_it_must_refund(self, process: Process, engine: Counted) -> None:
        one, near, exact = process(), charge(2), charge(9, "exact", sync_interval=None)
        admitted(one, near, 3)
        earlier = one.check([exact])
        assert not one.check([near], refund_if_denied=earlier)[0].allowed
        assert held(engine, exact) == 0


class TestRules:
    def test_a_soft_quota_is_told_and_counted(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(), charge(limit=Limit(40, WINDOW, "fixed_window", soft_quota=20), usage="rule|")
        found = []
        for _ in range(40):
            found += one.check([asked])
            clock.now += INTERVAL / 3
        allowed = [each.soft_exceeded for each in found if each.allowed]
        one.flush()
        assert allowed == [False] * 20 + [True] * (len(allowed) - 20)
        assert counts(engine) == {"rule": (len(allowed), 40 - len(allowed), 0, len(allowed) - 20)}

    def test_a_shadow_stops_nobody(self, process: Process, engine: Counted) -> None:
        one, shadow, near = process(), charge(1, "shadow", gating=False, usage="s|"), charge(900, "near", usage="n|")
        found = [one.check([shadow, near]) for _ in range(9)]
        assert [[each.allowed for each in verdicts] for verdicts in found] == [[True, True]] + [[False, True]] * 8
        one.flush()
        assert counts(engine) == {"s": (1, 0, 8, 0), "n": (9, 0, 0, 0)}
        assert (held(engine, shadow), held(engine, near)) == (1, 9)

    @pytest.mark.parametrize("fields", [{"count_refusals": True}, {"algorithm": "leaky_bucket"}])
    def test_what_fetches_nothing_is_asked_for_each_time(
        self, process: Process, engine: Counted, fields: dict[str, Any]
    ) -> None:
        one, asked = process(), charge(5, **fields)
        admitted(one, asked, 9)
        assert wants(engine) == [()] * 9

    def test_cost_0_looks_and_fetches_nothing(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(1_000)
        admitted(one, asked, 3)
        assert [one.check([asked._replace(cost=0)])[0].remaining for _ in range(3)] == [997] * 3
        assert admitted(one, asked, 50) == 50

    def test_two_tiers_share_a_counter_and_neither_spends_what_is_not_its_own(
        self, process: Process, engine: Counted
    ) -> None:
        one, free, pro = process(), charge(3), charge(1_000)
        admitted(one, pro, 20)
        assert admitted(one, free, 5) == 0
        assert admitted(one, pro, 20) == 20
        assert held(engine, pro) >= 40

    def test_peek_adds_what_is_in_hand(self, process: Process, engine: Counted) -> None:
        one, other, asked, exact = process(), process(), charge(100), charge(2, "exact", sync_interval=None)
        admitted(one, asked, 4)
        assert [each.remaining for each in one.peek([asked, exact])] == [96, 2]
        assert [each.remaining for each in other.peek([asked])] == [93]

    def test_a_reset_forgets_the_hand_also_while_it_fetches(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(100)
        admitted(one, asked, 3)
        one.reset([asked])
        assert one.check([asked])[0].remaining == 99
        engine.during = lambda: one.reset([asked])
        admitted(one, asked, 4)
        one.flush()
        assert held(engine, asked) == 4 + 2, "what that call fetched stays charged: perhaps it was before the reset"

    def test_of_more_counters_than_the_most_further_ones_are_exact(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one = process(max_counters=3)
        for number in range(12):
            assert admitted(one, charge(900, f"a{number}"), 4) == 4
        assert (len(one.counters.hands), len(one.counters.seen) <= 3) == (3, True)
        clock.now += 2 * INTERVAL
        one.check([charge(key="other", sync_interval=None)])
        admitted(one, charge(900, "later"), 4)
        assert [*one.counters.hands][-1] == "later" + charge().limit.tag
        assert len(one.counters.hands) == 3

    def test_the_oldest_makes_room_only_if_it_holds_nothing(self, process: Process, clock: Clock) -> None:
        one, kept = process(max_counters=2), charge(900, "kept", sync_interval=60.0)
        for asked in (kept, charge(900, "idle")):
            admitted(one, asked, 2)
        clock.now += 2 * INTERVAL
        one.check([charge(key="other", sync_interval=None)])
        for _ in range(2):
            admitted(one, charge(900, "later"), 2)
            assert kept.key + kept.limit.tag in one.counters.hands
        assert "later" + charge().limit.tag in one.counters.hands


class TestVersions:
    def test_rules_that_were_replaced_are_heard_of_within_the_interval(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked = process(ask_interval=0.5), charge(1_000, sync_interval=0.5)
        engine.publish(1)
        admitted(one, asked, 5, version=1)
        engine.publish(2)
        clock.now += 0.4
        calls = len(engine.calls)
        assert admitted(one, asked, 1, version=1) == 1
        assert len(engine.calls) == calls
        clock.now += 0.1
        with pytest.raises(StaleRules):
            one.check([asked], version=1)
        assert held(engine, asked) == 6, "a stale call has given back nothing, so another one does"
        lowered = asked._replace(limit=Limit(8, WINDOW, "fixed_window"))
        assert one.check([lowered], version=2)[0].remaining == 1

    def test_units_of_an_earlier_version_are_given_back(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(1_000)
        engine.publish(1)
        admitted(one, asked, 5, version=1)
        assert held(engine, asked) == 7
        engine.publish(2)
        one.check([asked], version=2)
        assert held(engine, asked) == 6 + engine.calls[-1].wants[0]

    def test_the_version_is_asked_for_once_an_interval(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked = process(ask_interval=1.0), charge(100_000, sync_interval=100.0)
        engine.publish(1)
        for _ in range(200):
            one.check([asked], version=1)
            clock.now += 0.1
        assert len(engine.calls) <= 20 + 12

    def test_while_it_is_not_confirmed_every_call_asks_for_it(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked, local = process(), charge(1_000, sync_interval=60.0), charge(9, "local", sync_interval=-1.0)
        engine.publish(1)
        admitted(one, asked, 5, version=1)
        clock.now += 1.0
        engine.down = True
        for each in (asked, local, asked):
            with pytest.raises(EngineUnavailable):
                one.check([each], version=1)
        engine.down, calls = False, len(engine.calls)
        assert admitted(one, asked, 2, version=1) == 2
        assert (len(engine.calls), one.peek([local])[0].remaining) == (calls + 1, 9)

    def test_a_call_without_charges_asks_for_it_whatever_was_asked_just_now(
        self, process: Process, engine: Counted
    ) -> None:
        one, asked = process(), charge(90, sync_interval=100.0)
        engine.publish(1)
        admitted(one, asked, 3, version=1)
        engine.publish(2)
        with pytest.raises(StaleRules):
            one.check([], version=1)


class TestLost:
    def test_units_are_spent_until_the_interval_is_over(self, process: Process, engine: Counted, clock: Clock) -> None:
        one, asked, later = process(), charge(1_000), charge(1_000, "later")
        admitted(one, asked, 4)
        admitted(one, later, 4)
        engine.down = True
        with pytest.raises(EngineUnavailable):
            one.check([charge(key="other", sync_interval=None)])
        assert admitted(one, asked, 3) == 3
        with pytest.raises(EngineUnavailable):
            one.check([asked])
        clock.now += INTERVAL
        with pytest.raises(EngineUnavailable):
            one.check([later])
        engine.down = False
        one.flush()
        assert (held(engine, asked), held(engine, later)) == (7, 7), "what the failed call was to give back is lost"

    def test_after_a_call_that_failed_the_next_one_fetches(self, process: Process, engine: Counted) -> None:
        one, asked = process(), charge(1_000)
        admitted(one, asked, 7)
        engine.down = True
        with pytest.raises(EngineUnavailable):
            one.check([asked])
        engine.down, calls = False, len(engine.calls)
        assert admitted(one, asked, 30) == 30
        assert len(engine.calls) == calls + 4

    def test_a_lost_reply_leaves_its_units_charged_and_counts_usage_once(
        self, process: Process, engine: Counted, clock: Clock
    ) -> None:
        one, asked = process(), charge(1_000, usage="rule|")
        admitted(one, asked, 5)
        clock.now += INTERVAL
        engine.lost = True
        with pytest.raises(EngineUnavailable):
            one.check([asked])
        one.check([asked])
        one.flush()
        assert held(engine, asked) >= 7
        assert counts(engine) == {"rule": (7, 0, 0, 0)}
