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

from plan import all_lanes, quick_stages
from running import Outcome, Runner, sum_up
from stages import ROOT

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
    lanes = [quick_stages()] if asked.quick else all_lanes(outcome, uv, strict=asked.strict, long=asked.long)
    lanes = [[stage for stage in lane if asked.only in stage.name] for lane in lanes]
    if not any(lanes):
        parser.error(f"No stage has {asked.only!r} in its name.")
    Runner(outcome, CACHE / "logs").run(*lanes)
    if not (asked.quick or asked.only):
        outcome.left_out += [f"{test} (skipped in every run)" for test in sorted(outcome.skipped - outcome.run)]
    return sum_up(outcome, time.monotonic() - began, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
