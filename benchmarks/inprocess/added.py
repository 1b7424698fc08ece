"""What a limiter adds to a whole Django request: `python -m benchmarks.inprocess.added` (REDIS_SERVER: which server).

  --quick      fewer requests, in less than a minute
  --async      on an event loop: the application is called as by uvicorn
  --first      with priority over all other work on this processor, for a busy machine; only as root
  --only TEXT  contestants whose names contain one of these, and those that they are compared with

Each limiter is in its own process, as in the stage "web", but without a web server: the application is called,
by 2,000 callers in turn. All of them and Redis share one processor, and between two requests its caches are replaced,
as by a web server and a client. All contestants are measured in turn, a few requests at a time.

added: the difference to the same view without a limiter, at the median. floor: its ratio to that of the simplest
limiter with redis-py. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle, islice
from statistics import median
from typing import Any, Final, NamedTuple

from example_project.redis_server import RedisServer

from ..setting import pin

CALLERS, FEW = 2_000, 20
ROUNDS, REQUESTS = 160, 25
QUICK_ROUNDS = 24


class Contestant(NamedTuple):
    """limiter: of the site. path: the view. less: the contestant whose time is subtracted. status: of each response.

    user: whether callers are signed in and have an API key. callers: how many there are.
    """

    limiter: str
    path: str
    less: str = "no limiter"
    status: int = 200
    user: bool = False
    callers: int = CALLERS


BARE, FLOOR, IN_A_THREAD = "no limiter", "EVALSHA through redis-py", "no limiter, in a thread"
OURS: Final = {
    BARE: Contestant("", "/three/"),
    "no limiter, signed in": Contestant("", "/three/", user=True),
    FLOOR: Contestant("floor", "/three/"),
    "ours: no rule": Contestant("ours", "/free/"),
    "ours: one rule": Contestant("ours", "/one/"),
    "ours: three rules": Contestant("ours", "/three/"),
    "ours: three rules, refused": Contestant("ours", "/refused/", status=429),
    "ours: three rules, synced": Contestant("ours", "/synced/"),
    "ours: three rules, synced, 20 callers": Contestant("ours", "/synced-few/", callers=FEW),
    "ours: three rules, tiers": Contestant("ours, tiers", "/three/"),
    "ours: user, key and address, tiers": Contestant("ours, tiers", "/known/", "no limiter, signed in", user=True),
    "ours: the same, 100 callers": Contestant(
        "ours, tiers", "/known/", "no limiter, signed in", user=True, callers=5 * FEW
    ),
}
PEERS: Final = {
    "django-ratelimit": "django-ratelimit",
    "django-smart-ratelimit": "django-smart-ratelimit",
    "limits, fixed window": "limits",
    "throttled-py, token bucket": "throttled-py",
    "pyrate-limiter, token bucket": "pyrate-limiter",
}


def contestants(*, on_loop: bool) -> dict[str, Contestant]:
    """Return all of them; views of peers run in a thread, on an event loop."""
    found = dict(OURS)
    bare = BARE
    if on_loop:
        bare = IN_A_THREAD
        found[bare] = Contestant("", "/in-a-thread/", bare)
    else:
        found["our call, packed, over a socket"] = Contestant("bare", "/three/")
        found["view of the REST framework"] = Contestant("DRF, no limiter", "/three/")
        for path, status, name in (("/three/", 200, ""), ("/refused/", 429, ", refused")):
            found[f"DRF, AnonRateThrottle{name}"] = Contestant("DRF", path, "view of the REST framework", status)
    for name, limiter in PEERS.items():
        found[name] = Contestant(limiter, "/three/", bare)
        status = 403 if name == "django-ratelimit" else 429
        found[f"{name}, refused"] = Contestant(limiter, "/refused/", bare, status)
    return found


class Process:
    """A process with one limiter. Raises RuntimeError if it cannot obey."""

    def __init__(self, limiter: str, *, on_loop: bool) -> None:
        environment = os.environ | {"BENCH_LIMITER": limiter, "BENCH_LOOP": "1" * on_loop}
        command = [sys.executable, "-m", f"{__package__}.worker"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def warm_up(self, contestant: Contestant, callers: Sequence[int]) -> None:
        """Make a request of each of these callers; afterwards those are rejected that should be."""
        self._ask(contestant._asdict() | {"callers": list(callers), "status": None, "cold": False})

    def measure(self, contestant: Contestant, callers: Iterable[int]) -> list[float]:
        """Return the microseconds of a request of each of these callers."""
        return self._ask(contestant._asdict() | {"callers": list(callers), "cold": True})

    def _ask(self, order: dict[str, Any]) -> list[float]:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "The process has ended."}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        found: list[float] = answer["us"]
        return found

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)


def measured(
    them: dict[str, Contestant], rounds: int, failed: dict[str, str], *, on_loop: bool
) -> dict[str, list[float]]:
    """Return the microseconds of each request by name. Contestants that fail are added to `failed`."""
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        callers: dict[str, Iterator[int]] = {}
        for number, (name, each) in enumerate(them.items()):
            if each.limiter not in processes:
                processes[each.limiter] = Process(each.limiter, on_loop=on_loop)
                stack.callback(processes[each.limiter].stop)
            everybody = range((number + 1) * 10_000, (number + 1) * 10_000 + each.callers)
            callers[name] = cycle(everybody)
            try:
                processes[each.limiter].warm_up(each, everybody)
            except RuntimeError as error:
                failed[name] = str(error)
        found: dict[str, list[float]] = {name: [] for name in them}
        for _ in range(rounds):
            for name, each in them.items():
                if name in failed:
                    continue
                try:
                    found[name] += processes[each.limiter].measure(each, islice(callers[name], REQUESTS))
                except RuntimeError as error:
                    failed[name] = str(error)
    return {name: times for name, times in found.items() if name not in failed}


def table(them: dict[str, Contestant], times: dict[str, list[float]]) -> str:
    """Return what each adds, and its ratio to the floor."""
    middle = {name: median(taken) for name, taken in times.items()}
    added = {name: us - middle[them[name].less] for name, us in middle.items() if them[name].less in middle}
    floor = added.get(FLOOR)
    lines = [f"{'':42}{'p50, us':>9}{'added':>9}{'floor':>8}"]
    for name, us in middle.items():
        more = added.get(name)
        figures = f"{'-' if more is None else f'{more:.0f}':>9}"
        figures += f"{more / floor:8.2f}" if more is not None and floor and them[name].less != name else f"{'-':>8}"
        lines.append(f"{name:42}{us:9.0f}{figures}")
    return "\n".join(lines)


def chosen(them: dict[str, Contestant], texts: list[str]) -> dict[str, Contestant]:
    """Return the contestants whose names contain one of these texts, and those that they are compared with."""
    names = {name for name in them if any(text in name for text in texts)} if texts else set(them)
    names |= {FLOOR} | {them[name].less for name in names | {FLOOR}}
    return {name: each for name, each in them.items() if name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a limiter adds to a whole Django request")
    parser.add_argument("--quick", action="store_true", help="fewer requests, in less than a minute")
    parser.add_argument("--async", action="store_true", dest="on_loop", help="on an event loop")
    parser.add_argument("--first", action="store_true", help="before all other work on this processor; only root may")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="names that contain one of these")
    options = parser.parse_args()
    them = chosen(contestants(on_loop=options.on_loop), options.only)
    failed: dict[str, str] = {}
    pin((0,), alone=True)  # everything that is started from now on shares it
    if options.first:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with RedisServer() as server, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ |= {"BENCH_REDIS_URL": server.url, "BENCH_FOLDER": folder}
        for limiter in ("ours", "ours, tiers"):  # each has its own database
            environment = os.environ | {"BENCH_LIMITER": limiter}
            subprocess.run([sys.executable, "-m", "benchmarks.site.rules"], check=True, env=environment)
        times = measured(them, QUICK_ROUNDS if options.quick else ROUNDS, failed, on_loop=options.on_loop)
    print(table(them, times))
    for name, why in failed.items():
        print(f"Not measured: {name}. {why}")


if __name__ == "__main__":
    main()
