"""What a limiter adds to the least Django view under gunicorn, with one worker of one thread for each limiter.

Latency: one request at a time over one connection, everything on one processor, all limiters in turn in each round.
Requests a second: four connections, on all processors, in turns of a second.
"""

from __future__ import annotations

import os
import selectors
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from example_project.redis_server import WatchedProcess, free_port

from ..contest import Contestant, address, new_callers
from ..keepalive import HOST, Connection
from ..registry import reason
from ..setting import CAN_PIN, Setting, pin, progress

ROUNDS, REQUESTS = 32, 100
TURNS, TURN_SECONDS, CONNECTIONS = 5, 1.0, 4
START_SECONDS = 30.0

#: Name: the limiter of the site, the path, and the name of what to compare with.
SITES = {
    "no limiter": ("", "/free/", "no limiter"),
    "no limiter, only the call for 3 rules": ("bare", "/free/", "no limiter"),
    "ours, a view that no rule names": ("ours", "/free/", "no limiter"),
    "ours, 1 rule": ("ours", "/one/", "no limiter"),
    "ours, 3 rules": ("ours", "/three/", "no limiter"),
    "ours, 3 rules, synced each second": ("ours", "/synced/", "no limiter"),
    "ours, 3 rules and tiers": ("ours, tiers", "/three/", "no limiter"),
    "django-ratelimit": ("django-ratelimit", "/free/", "no limiter"),
    "django-smart-ratelimit": ("django-smart-ratelimit", "/free/", "no limiter"),
    "limits, fixed window": ("limits", "/free/", "no limiter"),
    "throttled-py, token bucket": ("throttled-py", "/free/", "no limiter"),
    "pyrate-limiter, token bucket": ("pyrate-limiter", "/free/", "no limiter"),
    "DRF view, no throttle": ("DRF, no limiter", "/free/", "DRF view, no throttle"),
    "DRF view, AnonRateThrottle": ("DRF", "/free/", "DRF view, no throttle"),
}


class Site:
    """One gunicorn with one limiter."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        limiter, self.path, self.baseline = SITES[name]
        self.name = name
        self._port = free_port()
        folder.mkdir()
        options = "--workers 1 --worker-class gthread --threads 1 --keep-alive 75 --no-control-socket"
        gunicorn = [sys.executable, "-m", "gunicorn", "benchmarks.site.wsgi", "--bind", f"{HOST}:{self._port}"]
        command = ["/usr/bin/env", f"BENCH_LIMITER={limiter}", *gunicorn, *options.split()]
        self._process = WatchedProcess(command, folder)
        caller = Contestant(name, "", bool, address, first=number * 100_000)
        self.callers: Iterator[int] = new_callers(caller)

    def wait(self) -> None:
        """Wait for an answer. RuntimeError if none comes, or one that is not 200."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.running:
            try:
                connection = self.connect()
                status = connection.get(self.path, address(next(self.callers)))
            except OSError:
                time.sleep(0.1)
                continue
            connection.close()
            if status == 200:
                return
            break
        raise RuntimeError(f"It did not answer 200: {self._process.output[-150:]}")

    def connect(self) -> Connection:
        """A new connection."""
        return Connection(self._port)

    def stop(self) -> None:
        """End gunicorn, if it has not ended."""
        if self._process.running:
            self._process.stop()


def measure(setting: Setting) -> dict[str, Any]:
    """By name: microseconds at p50 and p99, what is added to the baseline, and requests a second."""
    os.environ["BENCH_REDIS_URL"] = setting.url
    with ExitStack() as stack, setting.client() as client:
        client.flushall()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-web-")))
        pin((0, setting.server), alone=True)  # what is started from here on shares it
        sites, failed = started(stack, folder)
        progress(f"{len(sites)} sites, one request at a time")
        latencies = in_rounds(sites, setting.few_or(ROUNDS), failed)
        for site in sites:
            site.stop()
        pin((0, setting.server), alone=False)
        sites, failed_again = started(stack, folder / "again")
        failed |= failed_again
        progress(f"{len(sites)} sites, {CONNECTIONS} connections")
        rates = in_turns(sites, setting.few_or(TURNS), TURN_SECONDS / (2 if setting.brief else 1), failed)
    results = {site.name: summed_up(site, latencies, rates) for site in sites if site.name not in failed}
    return {"requests": setting.few_or(ROUNDS) * REQUESTS, "pinned": CAN_PIN, "sites": results, "failed": failed}


def started(stack: ExitStack, folder: Path) -> tuple[list[Site], dict[str, str]]:
    """All sites that answer, and what is the matter with the others."""
    folder.mkdir(exist_ok=True)
    sites, failed = [], {}
    for number, name in enumerate(SITES):
        sites.append(Site(name, number, folder / str(number)))
        stack.callback(sites[-1].stop)
    for site in list(sites):
        try:
            site.wait()
        except RuntimeError as error:
            failed[site.name] = reason(error)
            sites.remove(site)
    return sites, failed


def in_rounds(sites: list[Site], rounds: int, failed: dict[str, str]) -> dict[str, list[float]]:
    """Microseconds of each request, sorted, by the name of the site. Who fails is told in `failed`."""
    found: dict[str, list[float]] = {site.name: [] for site in sites}
    connections = {site.name: site.connect() for site in sites}
    for number in range(-1, rounds):
        for site in sites:
            try:
                taken = [] if site.name in failed else one_round(site, connections[site.name])
            except (RuntimeError, OSError) as error:
                failed[site.name] = reason(error)
            else:
                found[site.name] += taken if number >= 0 else ()
    for connection in connections.values():
        connection.close()
    return {name: sorted(taken) for name, taken in found.items()}


def one_round(site: Site, connection: Connection) -> list[float]:
    """Microseconds of each request of a round. RuntimeError if one is not answered with 200."""
    taken = []
    for caller in islice(site.callers, REQUESTS):
        who = address(caller)
        began = time.perf_counter()
        status = connection.get(site.path, who)
        taken.append((time.perf_counter() - began) * 1e6)
        if status != 200:
            raise RuntimeError(f"It answered {status}.")
    return taken


def in_turns(sites: list[Site], turns: int, seconds: float, failed: dict[str, str]) -> dict[str, float]:
    """Requests a second of each site, the median of its turns. Who fails is told in `failed`."""
    found: dict[str, list[float]] = {}
    for _ in range(turns):
        for site in sites:
            try:
                found.setdefault(site.name, []).append(0.0 if site.name in failed else rate(site, seconds))
            except OSError as error:
                failed[site.name] = reason(error)
    return {name: sorted(rates)[len(rates) // 2] for name, rates in found.items()}


def rate(site: Site, seconds: float) -> float:
    """Requests a second over some connections, each of which asks again once it has its answer."""
    with selectors.DefaultSelector() as selector:
        connections = [site.connect() for _ in range(CONNECTIONS)]
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            connection.send(site.path, address(next(site.callers)))
        began, answered = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            for key, _ in selector.select():
                ready: Connection = key.fileobj  # type: ignore[assignment]
                ready.receive()
                answered += 1
                ready.send(site.path, address(next(site.callers)))
        for connection in connections:
            connection.receive()
            connection.close()
    return answered / took


def summed_up(site: Site, latencies: dict[str, list[float]], rates: dict[str, float]) -> dict[str, float]:
    """What stands in the table; nothing is added to a baseline that failed."""
    mine = latencies[site.name]
    baseline = latencies.get(site.baseline) or mine
    return {
        "p50": at(mine, 50),
        "p99": at(mine, 99),
        "added_p50": at(mine, 50) - at(baseline, 50),
        "added_p99": at(mine, 99) - at(baseline, 99),
        "per_second": rates[site.name],
    }


def at(taken: list[float], percent: int) -> float:
    """The value below which so many percent lie, of sorted ones."""
    return taken[min(len(taken) - 1, len(taken) * percent // 100)]
