"""An algorithm's own `allow` answers as its steps do, one after the other."""

from __future__ import annotations

from random import Random

import pytest

from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.engine.algorithms import ALLOW, STEPS, State, allow_in_steps

OWN = [algorithm for algorithm in Algorithm if hasattr(STEPS[algorithm], "allow") and Limit(5, 60, algorithm).is_fixed]
LIMITS = [(5, 60), (7, 11), (1, 0.5), (1_000_000, 3_600), (3, 86_400)]


def test_the_algorithms_that_most_rules_use_have_their_own() -> None:
    assert {"sliding_window_counter", "token_bucket", "gcra"} <= set(OWN)


@pytest.mark.parametrize("algorithm", OWN)
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_it_answers_as_the_steps_do(algorithm: Algorithm, limit: tuple[int, float]) -> None:
    random, steps = Random(f"{algorithm} {limit}"), allow_in_steps(STEPS[algorithm])
    limits = [Limit(limit[0], limit[1], algorithm), Limit(limit[0] + 2, limit[1], algorithm)]  # the quota is changed
    state: State | None = None
    at, answers = 1_760_000_000_000_000, [0, 0]
    for _ in range(1_000):
        window = limits[0].window_us
        at += random.choice(
            [0, 1, random.randrange(window // 4), random.randrange(window), random.randrange(3 * window)]
        )
        terms = random.choice(limits).terms
        cost = random.choice([1, 1, 2, max(1, limit[0] // 3), limit[0], limit[0] + 1])
        found = ALLOW[algorithm](state, at, cost, terms)
        assert found == steps(state, at, cost, terms), (state, at, cost, terms)
        answers[found is not None] += 1
        if found is not None:
            state = found[0]
    assert min(answers) > 50, "both answers are compared"
