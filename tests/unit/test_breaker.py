"""When a server is asked, by a clock that the test turns."""

from __future__ import annotations

from itertools import repeat

import pytest

from django_ratelimiter.engine import breaker as resilience
from django_ratelimiter.engine.breaker import FIRST_WAIT, MAX_FAILURES, MAX_WAIT, CircuitBreaker

ERROR = OSError("gone")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock, chance: float = 1.0) -> CircuitBreaker:
    breaker = CircuitBreaker(clock, lambda: chance)
    assert [breaker.fail(ERROR) for _ in range(MAX_FAILURES)] == [*repeat(False, MAX_FAILURES - 1), True]
    return breaker


def test_it_opens_after_failures_in_a_row(clock: Clock) -> None:
    breaker = CircuitBreaker(clock)
    for _ in range(10):
        assert not any(breaker.fail(ERROR) for _ in range(MAX_FAILURES - 1))
        breaker.succeed()
    assert not breaker.is_open
    assert opened(clock).is_open
    assert "gone" in opened(clock).reason()


def test_it_says_once_that_it_has_opened(clock: Clock) -> None:
    breaker = opened(clock)
    assert not any(breaker.fail(ERROR) for _ in range(10)), "calls that were on their way"


def test_only_one_of_threads_and_event_loops_probes_at_a_time(clock: Clock) -> None:
    breaker = opened(clock)
    assert not breaker.claim_probe(), "none is due"
    clock.now += FIRST_WAIT
    assert breaker.claim_probe()
    assert not breaker.claim_probe()
    breaker.fail_probe(ERROR)
    clock.now += breaker.next_probe_in()
    assert breaker.claim_probe(), "and then its event loop ends"
    clock.now += MAX_WAIT
    assert breaker.claim_probe()
    breaker.close()
    assert not breaker.claim_probe()


def test_probes_are_made_less_and_less_often(clock: Clock) -> None:
    breaker, waits = opened(clock), []
    for _ in range(10):
        waits.append(round(breaker.next_probe_in(), 6))
        clock.now += waits[-1]
        assert breaker.next_probe_in() == 0
        breaker.fail_probe(ERROR)
    assert waits[:4] == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]
    assert waits[-3:] == [MAX_WAIT] * 3


def test_processes_do_not_probe_all_at_once(clock: Clock) -> None:
    assert opened(clock, chance=0.0).next_probe_in() == pytest.approx(FIRST_WAIT / 2)


def test_it_closes_when_a_probe_has_succeeded(clock: Clock) -> None:
    breaker = opened(clock)
    breaker.succeed()
    assert breaker.is_open, "a call that was on its way proves nothing"
    breaker.close()
    assert (breaker.is_open, breaker.failures) == (False, 0)


def test_a_server_that_comes_and_goes_is_probed_ever_less_often(clock: Clock) -> None:
    breaker, waits = opened(clock), []
    for _ in range(4):
        waits.append(round(breaker.next_probe_in(), 6))
        clock.now += waits[-1]
        breaker.close()
        for _ in range(MAX_FAILURES):
            breaker.fail(ERROR)
    assert waits == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]
    breaker.close()
    clock.now += MAX_WAIT + 1
    for _ in range(MAX_FAILURES):
        breaker.fail(ERROR)
    assert breaker.next_probe_in() == pytest.approx(FIRST_WAIT)


def test_who_wants_to_know_of_the_recovery_is_told_before_anybody_asks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resilience, "_recovery_listeners", [])
    breaker, told = opened(clock), []
    resilience.on_recovered(lambda: told.append(breaker.is_open))
    breaker.close()
    breaker.close()
    assert told == [True]
