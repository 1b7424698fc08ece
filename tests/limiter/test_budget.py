"""What the limiter adds to a request, in Python calls. The figures may only fall.

`python -m benchmarks.inprocess.calls` says what is counted, and with `--by-function` where the calls are made. They
do not depend on the machine. Where Python and Django differ by a few calls, the ceiling is the highest figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Calls above Django's own, which makes some 50 for a view that does nothing; of a caller who comes again, and of one
#: who comes for the first time.
CEILINGS = {
    "no rule": 15,
    "one rule": 33,
    "one rule, refused": 39,
    "three rules": 33,
    "three rules, first": 48,
    "three rules, refused": 39,
    "three rules, refused, logged": 48,
    "three rules, synced": 45,
    "three rules, synced, first": 56,
    "three rules, synced, beside others": 42,
    "three rules, synced, beside others, first": 68,
    "three rules, tiers": 46,
    "user, key and address, tiers": 51,
}
CEILINGS_ON_LOOP = {
    "no rule": 15,
    "one rule": 56,
    "one rule, refused": 64,
    "three rules": 56,
    "three rules, first": 73,
    "three rules, refused": 64,
    "three rules, refused, logged": 71,
    "three rules, synced": 46,
    "three rules, synced, first": 82,
    "three rules, synced, beside others": 43,
    "three rules, synced, beside others, first": 94,
    "three rules, tiers": 69,
    "user, key and address, tiers": 74,
}
#: So many calls below its ceiling, or so large a part of it, a figure may lie before the ceiling has to follow.
SLACK, PART = 5, 0.1
FIRST = ", first"


@pytest.mark.once
@pytest.mark.parametrize(
    ("ceilings", "option"), [(CEILINGS, []), (CEILINGS_ON_LOOP, ["--async"])], ids=["thread", "event loop"]
)
def test_a_request_makes_no_more_calls_than_before(ceilings: dict[str, int], option: list[str]) -> None:
    found = calls_added([name for name in ceilings if not name.endswith(FIRST)], *option)
    higher = {name: (found[name], most) for name, most in ceilings.items() if found[name] > most}
    lower = {name: (found[name], most) for name, most in ceilings.items() if found[name] < most - slack(most)}
    assert not higher, f"The limiter makes more Python calls than before (now, ceiling): {higher}"
    assert not lower, f"Better: lower these ceilings in {__file__} (now, ceiling): {lower}"


def slack(ceiling: int) -> float:
    """Return how far below its ceiling a figure may lie."""
    return max(SLACK, PART * ceiling)


def calls_added(cases: list[str], *options: str) -> dict[str, int]:
    """Return the calls that the limiter adds, counted in a process of its own, where nothing else has run before."""
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "PYTHONWARNINGS")}
    command = [sys.executable, "-m", "benchmarks.inprocess.calls", "--json", *options, *cases]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first = {f"{name}{FIRST}": figures["first"] for name, figures in found.items()}
    return first | {name: figures["again"] for name, figures in found.items()}
