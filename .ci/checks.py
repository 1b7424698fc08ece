"""Runs all checks and lists what could not run: for `make test`, and with --quick for `make check`.

With --strict it fails if anything did not run that this machine could have: PostgreSQL, a second server version,
a test that was skipped everywhere. A Python that is not available is listed, but is not a failure.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from durations import Durations
from plan import all_stages, quick_stages
from progress import Progress
from running import Runner
from stages import ROOT, Outcome
from summary import sum_up

CACHE = ROOT / ".cache"


def main() -> int:
    """Run everything, then print the summary."""
    parser = argparse.ArgumentParser(description="Run all checks.")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--quick", action="store_true", help="only what takes seconds and needs no Redis")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the stages that have this in their names")
    parser.add_argument("--long", action="store_true", help="search much longer for what fails, as one does by night")
    parser.add_argument("--strict", action="store_true", help="fail if something had to be left out")
    asked = parser.parse_args()
    uv = str(Path(shutil.which(asked.uv) or asked.uv).absolute())
    for name in ("REDIS_URL", "REDIS_SERVER", "TEST_DATABASE"):
        os.environ.pop(name, None)  # the checks choose these themselves
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of hundreds of processes would compile Django again
    CACHE.mkdir(exist_ok=True)
    began = time.monotonic()
    outcome = Outcome()
    stages = quick_stages() if asked.quick else all_stages(outcome, uv, strict=asked.strict, long=asked.long)
    stages = [stage for stage in stages if asked.only in stage.name]
    if not stages:
        parser.error(f"No stage has {asked.only!r} in its name.")
    whole = "" if asked.quick or asked.only or asked.long else "all stages"
    progress = Progress([stage.name for stage in stages], Durations(CACHE / "durations.json"), whole)
    Runner(outcome, progress, CACHE / "logs").run(*stages)
    if not outcome.failed:
        progress.end_all()
    if not (asked.quick or asked.only):
        outcome.left_out += [f"{test} (skipped in every run)" for test in sorted(outcome.skipped - outcome.run)]
    return sum_up(outcome, time.monotonic() - began, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
