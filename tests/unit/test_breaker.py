"""When a server is asked, by a clock that the test turns."""

from __future__ import annotations

from itertools import repeat

import pytest

from django_ratelimiter.engine import breaker as resilience
from django_ratelimiter.engine.breaker import FIRST_WAIT, MAX_FAILURES, MAX_WAIT, CircuitBreaker

ERROR = OSError("gone")


@pytest.fixture
def now() -> list[float]:
    """The seconds that the clock shows."""
    return [1_000.0]


def opened(now: list[float], chance: float = 1.0) -> CircuitBreaker:
    breaker = CircuitBreaker(lambda: now[0], lambda: chance)
    assert [breaker.fail(ERROR) for _ in range(MAX_FAILURES)] == [*repeat(False, MAX_FAILURES - 1), True]
    return breaker


def test_it_opens_after_failures_in_a_row(now: list[float]) -> None:
    breaker = CircuitBreaker(lambda: now[0])
    for _ in range(10):
        assert not any(breaker.fail(ERROR) for _ in range(MAX_FAILURES - 1))
        breaker.succeed()
    assert not breaker.is_open
    assert opened(now).is_open
    assert "gone" in opened(now).reason()


def test_it_says_once_that_it_has_opened(now: list[float]) -> None:
    breaker = opened(now)
    assert not any(breaker.fail(ERROR) for _ in range(10)), "calls that were on their way"


def test_only_one_of_threads_and_event_loops_probes_at_a_time(now: list[float]) -> None:
    breaker = opened(now)
    assert not breaker.claim_probe(), "none is due"
    now[0] += FIRST_WAIT
    assert breaker.claim_probe()
    assert not breaker.claim_probe()
    breaker.fail_probe(ERROR)
    now[0] += breaker.next_probe_in()
    assert breaker.claim_probe(), "and then its event loop ends"
    now[0] += MAX_WAIT
    assert breaker.claim_probe()
    breaker.close()
    assert not breaker.claim_probe()


def test_probes_are_made_less_and_less_often(now: list[float]) -> None:
    breaker, waits = opened(now), []
    for _ in range(10):
        waits.append(round(breaker.next_probe_in(), 6))
        now[0] += waits[-1]
        assert breaker.next_probe_in() == 0
        breaker.fail_probe(ERROR)
    assert waits[:4] == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]
    assert waits[-3:] == [MAX_WAIT] * 3


def test_processes_do_not_probe_all_at_once(now: list[float]) -> None:
    assert opened(now, chance=0.0).next_probe_in() == pytest.approx(FIRST_WAIT / 2)


def test_it_closes_when_a_probe_has_succeeded(now: list[float]) -> None:
    breaker = opened(now)
    breaker.succeed()
    assert breaker.is_open, "a call that was on its way proves nothing"
    breaker.close()
    assert (breaker.is_open, breaker.failures) == (False, 0)


def test_a_server_that_comes_and_goes_is_probed_ever_less_often(now: list[float]) -> None:
    breaker, waits = opened(now), []
    for _ in range(4):
        waits.append(round(breaker.next_probe_in(), 6))
        now[0] += waits[-1]
        breaker.close()
        for _ in range(MAX_FAILURES):
            breaker.fail(ERROR)
    assert waits == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]
    breaker.close()
    now[0] += MAX_WAIT + 1
    for _ in range(MAX_FAILURES):
        breaker.fail(ERROR)
    assert breaker.next_probe_in() == pytest.approx(FIRST_WAIT)


def test_who_wants_to_know_of_the_recovery_is_told_before_anybody_asks(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resilience, "_recovery_listeners", [])
    breaker, told = opened(now), []
    resilience.on_recovered(lambda: told.append(breaker.is_open))
    breaker.close()
    breaker.close()
    assert told == [True]
