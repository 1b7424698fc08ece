"""The load test: `python -m tests.soak [--minutes 60] [--threads 8] [--rate 160]`; about an hour.

A site under gunicorn (two workers with threads) and one under uvicorn (an event loop) share a Redis Cluster of three
masters. 20,000 callers ask for nine pages under all eight algorithms. Meanwhile rules are edited and usage is
collected; in each minute a node of the cluster hangs or is killed, and is back five seconds later; and half-way a
worker of gunicorn is killed. What each process holds is looked at once a minute; what it held in the second quarter of
the time is compared with what it held in the last.

It fails if anybody got an answer that no rule or failure policy gives, or if a process holds more at the end than
GROWTH allows. What it prints belongs into docs/explanation/measurements.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.clusters import Cluster, until

from .processes import Stack, held_by, serving
from .report import Look, early_and_late, failures_of, table_of
from .traffic import Traffic

AWAY_SECONDS: Final = 5.0
KILLED: Final = "gunicorn, worker 2"
EDIT_SECONDS: Final = 5.0


def main() -> int:
    """Run it, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="The load test.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8, help="of clients (8)")
    parser.add_argument("--rate", type=float, default=160.0, help="requests in a second, of all of them (160)")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        Cluster(replicas=0, full_coverage=False) as cluster,
        serving(cluster, Path(folder), EDIT_SECONDS) as stack,
    ):
        traffic = Traffic(stack.ports, asked.threads, asked.rate)
        until(traffic.is_served, "both servers answer")
        with traffic.under_way():
            first, last = early_and_late(run(stack, cluster, asked.minutes * 60))
        said = "".join(process.output for process in stack.processes.values())
    print(table_of(asked.minutes, traffic, first, last))
    failures = failures_of(traffic, first, last, said)
    print("\n".join(failures) or "Nothing has grown, and every answer was a right one.")
    return 1 if failures else 0


def run(stack: Stack, cluster: Cluster, seconds: float) -> list[Look]:
    """Let time pass, and things happen; return what the processes held. The one that is killed is left out."""
    begin = time.monotonic()
    looks: list[Look] = []
    survivors = stack.workers()
    killed: int | None = survivors.pop(KILLED)
    while (passed := (time.monotonic() - begin) / seconds) < 1:
        looks.append(Look(passed, {name: held_by(pid) for name, pid in survivors.items()}))
        if killed is not None and passed >= 0.5:
            os.kill(killed, signal.SIGKILL)
            killed = None
        disturb(cluster, min(60.0, seconds / 10))
    return looks


def disturb(cluster: Cluster, seconds: float) -> None:
    """Let a node hang, or kill it, and bring it back; then leave the cluster in peace for the rest of the time."""
    server = random.choice(cluster.servers)
    random.choice((server.hang, server.kill))()
    away = min(AWAY_SECONDS, seconds / 2)
    time.sleep(away)
    server.start()
    cluster.until_it_works()
    time.sleep(seconds - away)


if __name__ == "__main__":
    sys.exit(main())
