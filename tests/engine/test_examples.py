"""The worked examples from the literature, on both engines and on the reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter.engine import Algorithm, Limit
from tests.engine.trio import HOUR, Trio

FILE = Path(__file__).parents[1] / "vectors" / "worked_examples.json"
EXAMPLES = [
    example for example in json.loads(FILE.read_text("utf-8")) if example["limit"]["algorithm"] in set(Algorithm)
]


def test_each_algorithm_has_examples() -> None:
    assert {example["limit"]["algorithm"] for example in EXAMPLES} == set(Algorithm)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_worked_example(trio: Callable[[], Trio], example: dict[str, Any]) -> None:
    asked = trio()
    limit = Limit(**example["limit"])
    for number, step in enumerate(example["steps"]):
        asked.now = HOUR + int(Fraction(str(step["at"])) * 1_000_000)
        answer = asked.one(limit, step["cost"])
        got: dict[str, Any] = {"allowed": answer.allowed, "remaining": answer.remaining}
        if "retry_after" in step:
            got["retry_after"] = None if answer.retry_after is None else answer.retry_after / 1_000_000
        assert got == {name: step[name] for name in got}, f"step {number}"
