"""Worked examples, on every engine and on the reference: those from the literature, and our own.

Each step is one check on one key, `at` seconds after any whole hour. Our own examples have a few words more:
`from` is the moment that `at` counts from; `refund` and `release` name the step whose receipt is used; `max_delay`
goes into the charge.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter.engine import Algorithm, Charge, Limit
from tests.engine.trio import HOUR, Receipt, Trio

VECTORS = Path(__file__).parents[1] / "vectors"
EXAMPLES = [
    example
    for name in ("worked_examples.json", "own_examples.json")
    for example in json.loads((VECTORS / name).read_text("utf-8"))
]


def test_each_algorithm_has_examples() -> None:
    assert {example["limit"]["algorithm"] for example in EXAMPLES} == set(Algorithm)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_worked_example(trio: Callable[[], Trio], example: dict[str, Any]) -> None:
    asked, limit, receipts = trio(), Limit(**example["limit"]), list[Any]()
    start = int(datetime.fromisoformat(example["from"]).timestamp()) * 1_000_000 if "from" in example else HOUR
    for number, step in enumerate(example["steps"]):
        asked.now = start + int(Fraction(str(step["at"])) * 1_000_000)
        receipts.append(_taken(asked, limit, step, receipts))
        if "allowed" in step:
            verdict = receipts[-1][0].memory
            told = {name: getattr(verdict, name) for name in ("allowed", "remaining", "retry_after", "delay")}
            due = {name: step[name] for name in told if name in step}
            assert {name: told[name] for name in due} == due, f"step {number}"


def _taken(asked: Trio, limit: Limit, step: dict[str, Any], receipts: list[list[Receipt]]) -> list[Receipt]:
    """Take a step on all three, which compare their whole answers with each other."""
    for name, ask in (("refund", asked.refund), ("release", asked.release)):
        if name in step:
            ask(receipts[step[name]])
            return []
    return asked.check([Charge("key", limit, step["cost"], max_delay=step.get("max_delay"))])
