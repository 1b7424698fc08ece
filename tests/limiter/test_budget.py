"""What the limiter adds to a request, in machine instructions, as ratios to one EVALSHA through redis-py.

`python -m benchmarks.instructions` says what is counted, and with `--by-function` where functions are called. The
ratios depend neither on the machine nor on its other work, but on Python and on redis-py: they are held on Python 3.11
and with the versions of `uv.lock`. They may only fall.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.instructions import floor_of

ROOT = Path(__file__).parents[2]
MEASURED_ON = (3, 11)
#: A ratio may lie this part above its ceiling, as figures differ between two runs, or below, before it has to follow.
ABOVE, BELOW = 0.07, 0.12
CEILINGS = {
    "ours: a view that no rule names": 0.27,
    "ours: one rule": 0.92,
    "ours: one rule, a caller's first visit": 1.14,
    "ours: three rules": 0.99,
    "ours: three rules, rejected": 1.70,
    "ours: three rules, tiers": 1.47,
    "ours: by user, key and address, tiers": 1.28,
    "ours: one rule, fetched, a caller seen again later": 0.91,
    "ours: one rule, fetched, a caller's first visit": 1.16,
    "ours: @ratelimit with a rate": 1.34,
    "ours: @ratelimit with a rate, rejected": 2.51,
    "ours: @ratelimit with a scope": 1.18,
    "ours: RuleThrottle, by user": 1.20,
    "ours: AnonRateThrottle": 1.46,
    "ours on an event loop: three rules": 0.68,
    "ours on an event loop: three rules, rejected": 1.82,
}


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("valgrind"), reason="no valgrind, which counts instructions")
@pytest.mark.skipif(sys.version_info[:2] != MEASURED_ON, reason="the ceilings are those of Python 3.11")
def test_a_request_takes_no_more_instructions_than_before() -> None:
    found = ratios(list(CEILINGS))
    if again := [name for name, most in CEILINGS.items() if found[name] > most * (1 + ABOVE)]:
        found |= {name: min(ratio, found[name]) for name, ratio in ratios(again).items()}  # other work only adds
    higher = {name: (found[name], most) for name, most in CEILINGS.items() if found[name] > most * (1 + ABOVE)}
    lower = {name: (found[name], most) for name, most in CEILINGS.items() if found[name] < most * (1 - BELOW)}
    assert not higher, f"The limiter takes more instructions than before (now, ceiling): {higher}"
    assert not lower, f"Better: lower these ceilings in {__file__} (now, ceiling): {lower}"


def ratios(names: list[str]) -> dict[str, float]:
    """Return what the limiter adds, to an EVALSHA; counted in other processes, where nothing else has run before."""
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "PYTHONWARNINGS")}
    command = [sys.executable, "-m", "benchmarks.instructions", "--json", *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    added: dict[str, float] = json.loads(done.stdout)
    return {name: added[name] / added[floor_of(name)] for name in names}
