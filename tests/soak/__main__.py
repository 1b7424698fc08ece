"""The load test: `python -m tests.soak [--minutes 60] [--threads 8] [--rest 0.02] [--write]`; about an hour.

A site under gunicorn (two workers with threads) and one under uvicorn (an event loop) share a Redis Cluster of three
masters. 20,000 callers ask for nine pages under all eight algorithms. Meanwhile rules are edited and usage is
collected; in each minute a node of the cluster hangs or is killed, and is back five seconds later; and half-way a
worker of gunicorn is killed. What each process holds is looked at after a quarter of the time and at the end.

It fails if anybody got an answer that no rule or failure policy gives, or if a process holds more at the end than
GROWTH allows. --write puts the result into docs/explanation/endurance.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.clusters import Cluster, until

from .processes import Held, Stack, held_by, running
from .report import failures_of, table_of, write
from .traffic import Traffic

#: Of the time, how much passes before what the processes hold is first looked at: their caches fill.
WARM_UP: Final = 0.25
AWAY_SECONDS: Final = 5.0
KILLED: Final = "gunicorn, worker 2"
EDIT_SECONDS: Final = 5.0


def main() -> int:
    """Run it, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="The load test.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8, help="of clients (8)")
    parser.add_argument("--rest", type=float, default=0.02, help="seconds that each rests after an answer (0.02)")
    parser.add_argument("--write", action="store_true", help="put the result into the docs")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        Cluster(replicas=0, full_coverage=False) as cluster,
        running(cluster, Path(folder), EDIT_SECONDS) as stack,
    ):
        traffic = Traffic(stack.ports, asked.threads, asked.rest)
        until(traffic.is_served, "both servers answer")
        with traffic.under_way():
            first, last = run(stack, cluster, asked.minutes * 60)
        said = "".join(process.output for process in stack.processes.values())
    report = table_of(asked.minutes, traffic, first, last)
    print(report)
    if asked.write:
        write(report)
    failures = failures_of(traffic, first, last, said)
    print("\n".join(failures) or "Nothing has grown, and every answer was a right one.")
    return 1 if failures else 0


def run(stack: Stack, cluster: Cluster, seconds: float) -> tuple[dict[str, Held], dict[str, Held]]:
    """Let time pass, and things happen; what the processes held, early and at the end."""
    begin = time.monotonic()
    first: dict[str, Held] = {}
    survivors: dict[str, int] = {}
    most: Counter[int] = Counter()
    kill_at = begin + seconds / 2
    while (now := time.monotonic()) < begin + seconds:
        if not first:  # connections come and go with each node that is away: the most until then
            survivors = stack.workers()
            early = {name: held_by(pid) for name, pid in survivors.items()}
            most |= Counter({survivors[name]: held.descriptors for name, held in early.items()})
            if now >= begin + seconds * WARM_UP:
                first = {name: held._replace(descriptors=most[survivors[name]]) for name, held in early.items()}
        if first and now >= kill_at:
            os.kill(survivors.pop(KILLED), signal.SIGKILL)
            del first[KILLED]
            kill_at = begin + 2 * seconds
        disturb(cluster, min(60.0, seconds / 10))
    return first, {name: held_by(pid) for name, pid in survivors.items()}


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
