"""MemoryEngine, RedisEngine and the exact reference give the same answers, whatever they are asked.

TWIN_STEPS: twice the checks and peeks of each algorithm that each test of walks makes (1,000; 10,000 in `make test
ARGS=--long`).
The long run: `pytest -c pyproject.toml -m long -s tests/unit/test_twins.py`.
TWIN_LONG_STEPS: how many it makes in all (1,000,000).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Limit
from tests.engine.strategies import limit_by, limits, tiny_window_by, window_by
from tests.engine.trio import Trio
from tests.engine.walk import Walk

STEPS = int(os.environ.get("TWIN_STEPS", "2_000")) // 2
LONG_STEPS = int(os.environ.get("TWIN_LONG_STEPS", "1_000_000"))
STEPS_OF_A_WALK = 50
STEPS_OF_A_SEED = 40

MakeTrio = Callable[[], Trio]

#: For walks that are drawn from a seed, all of which takes as many steps as `test_walks` does.
by_seeds = settings(max_examples=max(STEPS // STEPS_OF_A_SEED, 1))


def walked(trio: MakeTrio, algorithm: Algorithm, least: int) -> int:
    """Walk until so many steps are made; how many were. Hypothesis draws the limits and a seed for each walk."""
    steps = 0

    @given(first=limits(algorithm), others=st.lists(limits(), max_size=2), seed=st.integers(0, 2**64 - 1))
    @settings(max_examples=max(least // STEPS_OF_A_WALK, 1))
    def walk(first, others, seed) -> None:
        nonlocal steps
        made = Walk(trio(), Random(seed), [first, *others])
        made.go(STEPS_OF_A_WALK)
        steps += made.steps

    while steps < least:
        walk()
    return steps


@pytest.mark.parametrize("algorithm", Algorithm)
def test_walks(trio: MakeTrio, algorithm: Algorithm, record_property: Callable[[str, object], None]) -> None:
    steps = walked(trio, algorithm, STEPS)
    record_property("steps", steps)
    assert steps >= STEPS


@pytest.mark.long
@pytest.mark.parametrize("algorithm", Algorithm)
def test_long_walks(trio: MakeTrio, algorithm: Algorithm) -> None:
    steps = walked(trio, algorithm, -(-LONG_STEPS // len(Algorithm)))
    print(f"\n{algorithm}: {steps} steps, identical verdicts", flush=True)


@pytest.mark.parametrize("algorithm", Algorithm)
@given(seed=st.integers(0, 2**64 - 1))
@by_seeds
def test_walks_with_limits_changed_all_the_time(trio: MakeTrio, algorithm: Algorithm, seed: int) -> None:
    random = Random(seed)
    Walk(trio(), random, [limit_by(random, algorithm)]).go(STEPS_OF_A_SEED, editing=True)


@pytest.mark.parametrize(
    ("limit", "defaults"),
    [
        (Limit(5, 60, "sliding_window_slots"), {"slots": 10}),
        (Limit(5, algorithm="fixed_window", calendar="month"), {"timezone": "UTC", "anchor_day": 1}),
    ],
)
def test_a_default_that_is_set_changes_no_counter(trio: MakeTrio, limit: Limit, defaults: dict[str, Any]) -> None:
    made = trio()
    assert made.one(limit, 2).remaining == 3
    assert made.one(replace(limit, **defaults)).remaining == 2
    assert made.one(limit).remaining == 1


@pytest.mark.parametrize("algorithm", Algorithm)
@given(seed=st.integers(0, 2**64 - 1))
@by_seeds
def test_walks_of_large_numbers(trio: MakeTrio, algorithm: Algorithm, seed: int) -> None:
    """Where doubles would cease to be exact: with the largest quotas that can be built."""
    random = Random(seed)
    largest = largest_by(random, algorithm)
    Walk(trio(), random, [largest]).go(STEPS_OF_A_SEED)


def largest_by(random: Random, algorithm: Algorithm) -> Limit:
    """A limit with hardly any smaller quota than the largest for its window."""
    quota, window = 2**48 - random.choice((1, 2, random.randint(1, 10**6))), window_by(random)
    slots = random.choice((1, 7, 100)) if algorithm == "sliding_window_slots" else None
    while True:
        try:
            return Limit(quota, window, algorithm, slots=slots)
        except ValueError:
            quota = quota // 2 + random.randrange(2) if quota > 20_000 else quota - 1_000


@pytest.mark.parametrize("algorithm", Algorithm)
@given(seed=st.integers(0, 2**64 - 1))
@by_seeds
def test_walks_of_small_numbers(trio: MakeTrio, algorithm: Algorithm, seed: int) -> None:
    """Where edges are met all the time: up to five units in a window of up to six microseconds."""
    random = Random(seed)
    made = [
        limit_by(random, kind, window=tiny_window_by(random), quota=random.randint(1, 5))
        for kind in (algorithm, random.choice(list(Algorithm)))
    ]
    Walk(trio(), random, made).go(STEPS_OF_A_SEED)
