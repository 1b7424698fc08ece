"""Machine instructions that a limiter adds to a request: `python -m benchmarks.instructions [TEXT ...]`.

  TEXT           only rows whose names contain one of these, and those that they are compared with
  --by-function  instead: how often each function is called in a request
  --json         only the figures: what each adds, in thousands

Needs valgrind (Debian's package of this name). Each limiter has its own process with a whole Django site, without a web
server, under callgrind, which counts the instructions of requests only, not those of Redis. They depend neither on the
speed of the machine nor on its other work: two runs differ by about 3 %. Compare runs of the same rows only: Python
adapts its code to what a process has run before, and a row alone may take 5 % more or less.

500 callers make requests in turn, each of whom has come before, unless the row says otherwise. *Added* is the
difference to the same view without a limiter, or to a DRF view without a throttle; *to EVALSHA* its ratio to what one
EVALSHA through redis-py adds, or through redis.asyncio on an event loop. Limiters that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from example_project.redis_server import RedisServer

from .contest import CALLERS_EACH

CALLERS: Final = 500
#: Requests that are counted together, and how often; the least counts, as other work of the process only adds.
REQUESTS, TIMES = 50, 3


class Row(NamedTuple):
    """limiter: of the site. path: the view. less: the row with which it is compared. status: of each response.

    user: whether callers are signed in and have an API key. new: whether each caller comes for the first time.
    on_loop: whether the site is asynchronous.
    """

    limiter: str
    path: str
    less: str = "a view"
    status: int = 200
    user: bool = False
    new: bool = False
    on_loop: bool = False


DRF, KNOWN, KNOWN_DRF, ON_LOOP = "a DRF view", "a view, signed in", "a DRF view, signed in", "a view on an event loop"
EVALSHA, EVALSHA_ON_LOOP = "EVALSHA through redis-py", "EVALSHA through redis.asyncio"
ROWS: Final = {
    "a view": Row("", "/three/"),
    KNOWN: Row("", "/three/", KNOWN, user=True),
    DRF: Row("", "/drf/", DRF),
    KNOWN_DRF: Row("", "/drf/", KNOWN_DRF, user=True),
    EVALSHA: Row("floor", "/three/"),
    "limits, fixed window": Row("limits", "/three/"),
    "django-ratelimit": Row("django-ratelimit", "/three/"),
    "django-ratelimit, rejected": Row("django-ratelimit", "/refused/", status=403),
    "django-smart-ratelimit": Row("django-smart-ratelimit", "/three/"),
    "django-smart-ratelimit, rejected": Row("django-smart-ratelimit", "/refused/", status=429),
    "DRF's AnonRateThrottle on django-redis": Row("DRF", "/three/", DRF),
    "DRF's AnonRateThrottle on django-redis, rejected": Row("DRF", "/refused/", DRF, 429),
    "ours: a view that no rule names": Row("ours", "/free/"),
    "ours: one rule": Row("ours", "/one/"),
    "ours: one rule, a caller's first visit": Row("ours", "/one/", new=True),
    "ours: three rules": Row("ours", "/three/"),
    "ours: three rules, rejected": Row("ours", "/refused/", status=429),
    "ours: three rules, tiers": Row("ours, tiers", "/three/"),
    "ours: by user, key and address, tiers": Row("ours, tiers", "/known/", KNOWN, user=True),
    "ours: one rule, fetched, a caller seen again later": Row("ours", "/fetched-one/"),
    "ours: one rule, fetched, a caller's first visit": Row("ours", "/fetched-one/", new=True),
    "ours: @ratelimit with a rate": Row("ours", "/rate/"),
    "ours: @ratelimit with a rate, rejected": Row("ours", "/rate-refused/", status=429),
    "ours: @ratelimit with a scope": Row("ours", "/scope/"),
    "ours: RuleThrottle, by user": Row("ours", "/by-user/", KNOWN_DRF, user=True),
    "ours: RuleThrottle, by address and user": Row("ours", "/by-address-and-user/", KNOWN_DRF, user=True),
    "ours: AnonRateThrottle": Row("ours", "/anon-throttle/", DRF),
    "ours: UserRateThrottle": Row("ours", "/user-throttle/", KNOWN_DRF, user=True),
    "ours: ScopedRateThrottle": Row("ours", "/scoped-throttle/", DRF),
    ON_LOOP: Row("", "/three/", ON_LOOP, on_loop=True),
    EVALSHA_ON_LOOP: Row("floor", "/three/", ON_LOOP, on_loop=True),
    "ours on an event loop: one rule": Row("ours", "/one/", ON_LOOP, on_loop=True),
    "ours on an event loop: three rules": Row("ours", "/three/", ON_LOOP, on_loop=True),
    "ours on an event loop: three rules, rejected": Row("ours", "/refused/", ON_LOOP, 429, on_loop=True),
    "ours on an event loop: @ratelimit with a rate": Row("ours", "/rate/", ON_LOOP, on_loop=True),
}


class Process:
    """A process with a limiter, under callgrind. Raises RuntimeError if it cannot do what it is asked.

    profiled: without callgrind; instead, it counts the calls of each function.
    """

    def __init__(self, limiter: str, folder: Path, *, on_loop: bool, profiled: bool) -> None:
        self._profiled, self._out = profiled, folder / f"site {limiter}{' on a loop' * on_loop}" / "out"
        self._out.parent.mkdir()
        environment = os.environ | {"BENCH_LIMITER": limiter, "BENCH_LOOP": "1" * on_loop}
        environment |= {"BENCH_PROFILED": "1" * profiled, "PYTHONHASHSEED": "0"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling takes long under callgrind
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self._out}"]
        command = [*(() if profiled else tool), sys.executable, "-m", "benchmarks.site.worker"]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ask(self, row: Row, callers: Iterable[int], status: int | None) -> str:
        """Make a request of each of these callers, and return the calls of functions. status: `None` = any."""
        assert self._process.stdin
        assert self._process.stdout
        order = {"path": row.path, "callers": list(callers), "user": row.user, "status": status}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"The process has ended. {self._process.communicate()[1][-300:]}")
        answer: dict[str, str] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["calls"]

    def measure(self, row: Row, callers: Iterator[int]) -> float | str:
        """Return the thousands of instructions of a request of these callers; if profiled, the calls of functions."""
        calls = self.ask(row, islice(callers, REQUESTS), row.status)  # callgrind translates the code
        if self._profiled:
            return calls
        taken = []
        for _ in range(TIMES):
            self.control("zero")
            self.ask(row, islice(callers, REQUESTS), row.status)
            self.control("dump")
            latest = max(self._out.parent.glob("out.*"), key=lambda file: int(file.suffix[1:]))
            [totals] = re.findall(r"^totals: (\d+)", latest.read_text("utf-8"), re.MULTILINE)
            taken.append(int(totals) / REQUESTS / 1_000)
        return min(taken)

    def control(self, *words: str) -> None:
        """Send a command to callgrind."""
        if not self._profiled:
            subprocess.run(["vgdb", f"--pid={self._process.pid}", *words], check=True, capture_output=True)

    def stop(self) -> None:
        """End it."""
        self._process.communicate()


def measure(names: Iterable[str] = tuple(ROWS), *, profiled: bool = False) -> dict[str, dict[str, Any]]:
    """Return by row the thousands of instructions of a request, or the calls of functions; and why some are missing."""
    found: dict[str, dict[str, Any]] = {"rows": {}, "failed": {}}
    if not profiled and not shutil.which("valgrind"):
        found["failed"]["instructions"] = "valgrind was not found. On Debian: apt-get install valgrind"
        return found
    with RedisServer() as server, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ |= {"BENCH_REDIS_URL": server.url, "BENCH_FOLDER": folder}
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"
        for limiter in ("ours", "ours, tiers"):  # each has its own database
            environment = os.environ | {"BENCH_LIMITER": limiter}
            subprocess.run([sys.executable, "-m", "benchmarks.site.rules"], check=True, env=environment)
        sites: dict[tuple[str, bool], list[str]] = {}
        for name in names:
            sites.setdefault((ROWS[name].limiter, ROWS[name].on_loop), []).append(name)
        for (limiter, on_loop), them in sites.items():
            process = Process(limiter, Path(folder), on_loop=on_loop, profiled=profiled)
            try:
                found["rows"] |= measure_together(process, them)
            except RuntimeError as error:
                found["failed"] |= dict.fromkeys(them, str(error))
            process.stop()
    found["rows"] = {name: found["rows"][name] for name in ROWS if name in found["rows"]}
    return found


def measure_together(process: Process, names: list[str]) -> dict[str, float | str]:
    """Let each caller of these rows come once, or twice if rejected; then measure the next requests of each row."""
    everybody = {name: range(first, first + CALLERS) for name in names if (first := first_caller(name))}
    for name in names:
        for _ in range(1 if ROWS[name].status == 200 else 2):
            process.ask(ROWS[name], everybody[name], None)
    process.control("instrumentation", "on")
    return {
        name: process.measure(ROWS[name], count(them.stop) if ROWS[name].new else cycle(them))
        for name, them in everybody.items()
    }


def first_caller(name: str) -> int:
    """Return the first of a row's own callers."""
    return (list(ROWS).index(name) + 1) * CALLERS_EACH


def added(rows: dict[str, Any]) -> dict[str, float]:
    """Return what each limiter adds to the view that it is compared with."""
    return {
        name: taken - rows[ROWS[name].less]
        for name, taken in rows.items()
        if ROWS[name].less != name and ROWS[name].less in rows
    }


def chosen(texts: list[str]) -> list[str]:
    """Return the rows whose names contain one of these texts, and those that they are compared with."""
    names = {name for name in ROWS if any(text in name for text in texts)} if texts else set(ROWS)
    names |= {floor_of(name) for name in names}
    return [name for name in ROWS if name in names | {ROWS[each].less for each in names}]


def floor_of(name: str) -> str:
    """Return the row of an EVALSHA on the same kind of site."""
    return EVALSHA_ON_LOOP if ROWS[name].on_loop else EVALSHA


def main() -> int:
    parser = argparse.ArgumentParser(description="Machine instructions that a limiter adds to a request")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="rows whose names contain one of these")
    parser.add_argument("--by-function", action="store_true", help="how often each function is called in a request")
    parser.add_argument("--json", action="store_true", help="only what each adds")
    options = parser.parse_args()
    found = measure(chosen(options.texts), profiled=options.by_function)
    more = {} if options.by_function else added(found["rows"])
    if options.json:
        print(json.dumps(more))
    elif options.by_function:
        print("\n\n".join(f"{name}\n{calls}" for name, calls in found["rows"].items()))
    else:
        print(f"{'thousands of instructions':52}{'added':>9}{'to EVALSHA':>12}")
        for name, taken in more.items():
            floor = more.get(floor_of(name))
            print(f"{name:52}{taken:9.1f}{taken / floor if floor else 0:12.2f}")
    for name, why in found["failed"].items():
        print(f"Not measured: {name}. {why}", file=sys.stderr)
    return 0 if found["rows"] else 1


if __name__ == "__main__":
    sys.exit(main())
