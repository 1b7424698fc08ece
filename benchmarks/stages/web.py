"""What a limiter adds to a minimal Django view under gunicorn, with one worker of one thread for each limiter.

Latency: one request at a time over one connection, everything on one processor, all limiters in turn in each round.
The servers are started several times: which pages of memory a process gets changes what it adds by a tenth.
Requests per second: four connections, on all processors, in turns of a second.
"""

from __future__ import annotations

import os
import selectors
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from ..keepalive import Connection
from ..registry import reason
from ..setting import CAN_PIN, Setting, pin, progress
from ..sites import ALL_WAYS, CALLERS, REFUSED, ROW, SITES, TURNS, Server, Site, callers_of

STARTS, ROUNDS, REQUESTS = 3, 12, 100
#: Requests at the beginning of a round that are not measured: the processor has run another server before, except
#: where several sites share one.
COLD = 5
TURNS_OF_RATE, TURN_SECONDS, CONNECTIONS = 5, 1.0, 4

#: Microseconds of each request, by way and name of the site.
Latencies = dict[str, dict[str, list[float]]]


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name: microseconds by way, and requests per second."""
    return measured(setting, SITES, on_loop=False)


def measured(setting: Setting, sites: Mapping[str, Site], *, on_loop: bool) -> dict[str, Any]:
    """Return the results of these sites."""
    os.environ["BENCH_REDIS_URL"] = setting.url
    callers = setting.few_or(CALLERS)
    with ExitStack() as stack, setting.client() as client:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-web-")))
        pin((0, setting.server), alone=True)  # everything that is started from now on shares it
        starts, failed = setting.few_or(STARTS), dict[str, str]()
        latencies: Latencies = {way: {} for way in ALL_WAYS}
        for start in range(starts):
            client.flushall()
            progress(f"{len(sites)} sites, one request at a time, {start + 1} of {starts}")
            contest = Contest(stack, folder / str(start), sites, callers, on_loop=on_loop)
            for way, times in contest.in_rounds(setting.few_or(ROUNDS)).items():
                for name, taken in times.items():
                    latencies[way].setdefault(name, []).extend(taken)
            contest.stop()
            failed |= contest.failed
        pin((0, setting.server), alone=False)
        again = Contest(stack, folder / "again", sites, callers, on_loop=on_loop)
        progress(f"{len(sites)} sites, {CONNECTIONS} connections")
        rates = again.in_turns(setting.few_or(TURNS_OF_RATE), TURN_SECONDS / (2 if setting.brief else 1))
    failed |= again.failed
    for times in latencies.values():
        for taken in times.values():
            taken.sort()
    results = {name: summed_up(name, sites, latencies, rates) for name in sites if name not in failed}
    counts = {"requests": starts * setting.few_or(ROUNDS) * REQUESTS, "callers": callers}
    return {**counts, "pinned": CAN_PIN, "sites": results, "failed": failed}


class Contest:
    """The sites, each limiter in its own web server. failed: errors of those that do not work."""

    def __init__(
        self, stack: ExitStack, folder: Path, sites: Mapping[str, Site], callers: int, *, on_loop: bool
    ) -> None:
        self._sites, self.failed = sites, dict[str, str]()
        self._servers: dict[str, Server] = {}
        for number, limiter in enumerate(dict.fromkeys(site.limiter for site in sites.values())):
            self._servers[limiter] = Server(limiter, folder / str(number), on_loop=on_loop)
            stack.callback(self._servers[limiter].stop)
        for limiter, server in self._servers.items():
            try:
                server.wait()
            except RuntimeError as error:
                self.failed |= {name: reason(error) for name, site in sites.items() if site.limiter == limiter}
        self._callers = {
            (name, way): callers_of(number, site, way, callers)
            for number, (name, site) in enumerate(sites.items())
            for way in site.ways
        }
        self._number = callers

    def connect(self, name: str) -> Connection:
        """Return a new connection to a site."""
        return Connection(self._servers[self._sites[name].limiter].port)

    def stop(self) -> None:
        """Stop all web servers."""
        for server in self._servers.values():
            server.stop()

    def in_rounds(self, rounds: int) -> Latencies:
        """Return microseconds of each request, after a visit of each caller who comes in turn."""
        found: Latencies = {
            way: {name: [] for name, site in self._sites.items() if way in site.ways} for way in ALL_WAYS
        }
        connections = {name: self.connect(name) for name in self._sites if name not in self.failed}
        for way, times in found.items():
            for name in times:
                if name not in self.failed and way != ROW:
                    self._meet(name, way, connections[name])
        for _ in range(rounds):
            for way, times in found.items():
                for name in times:
                    if name not in self.failed:
                        times[name] += self._one_round(name, way, connections[name])
        for connection in connections.values():
            connection.close()
        return found

    def _meet(self, name: str, way: str, connection: Connection) -> None:
        """Let each caller of a site come once; one who is to be rejected, also be rejected once."""
        site = self._sites[name]
        visits = min(self._number, site.callers) * (2 if way == REFUSED else 1)
        self._timed(name, way, connection, visits, any_status=True)

    def _one_round(self, name: str, way: str, connection: Connection) -> list[float]:
        return self._timed(name, way, connection, COLD + REQUESTS, any_status=False)[COLD:]

    def _timed(self, name: str, way: str, connection: Connection, number: int, *, any_status: bool) -> list[float]:
        """Return microseconds of this number of requests; none if the site fails, which is added to `failed`."""
        callers = islice(self._callers[name, way], number)
        try:
            return timed(connection, self._sites[name], way, callers, any_status=any_status)
        except (RuntimeError, OSError) as error:
            self.failed[name] = reason(error)
            return []

    def in_turns(self, turns: int, seconds: float) -> dict[str, float]:
        """Return requests per second of each site, the median of its turns, after a visit of each caller.

        Sites that fail are added to `failed`.
        """
        found: dict[str, list[float]] = {}
        for turn in range(turns):
            for name, site in self._sites.items():
                if name in self.failed:
                    continue
                if turn == 0:
                    alone = self.connect(name)  # the server's only thread would wait for data on the others
                    self._meet(name, TURNS, alone)
                    alone.close()
                connections = [self.connect(name) for _ in range(CONNECTIONS)]
                try:
                    found.setdefault(name, []).append(rate(connections, site, self._callers[name, TURNS], seconds))
                except OSError as error:
                    self.failed[name] = reason(error)
        return {name: sorted(rates)[len(rates) // 2] for name, rates in found.items()}


def timed(
    connection: Connection, site: Site, way: str, callers: Iterator[int], *, any_status: bool = False
) -> list[float]:
    """Return microseconds of a request of each of these callers. Raises RuntimeError if a response is wrong.

    Some callers that should be rejected may be allowed when a window ends: they are left out.
    """
    path, taken, asked, status = site.path_for(way), [], 0, 0
    for caller in callers:
        headers = site.headers(caller)
        began = time.perf_counter()
        status = connection.get(path, headers)
        took = (time.perf_counter() - began) * 1e6
        asked += 1
        if any_status or (status in (403, 429) if way == REFUSED else status == 200):
            taken.append(took)
    if len(taken) < (asked / 2 if way == REFUSED else asked):
        raise RuntimeError(f"It answered {status}.")
    return taken


def rate(connections: list[Connection], site: Site, callers: Iterator[int], seconds: float) -> float:
    """Return requests per second over these connections, each of which is never idle. Closes them."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            connection.send(site.path, site.headers(next(callers)))
        began, answered = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            for key, _ in selector.select():
                ready: Connection = key.fileobj  # type: ignore[assignment]
                ready.receive()
                answered += 1
                ready.send(site.path, site.headers(next(callers)))
        for connection in connections:
            connection.receive()
            connection.close()
    return answered / took


def summed_up(name: str, sites: Mapping[str, Site], latencies: Latencies, rates: dict[str, float]) -> dict[str, Any]:
    """Return the content of the table; without what is added to a baseline that failed."""
    found: dict[str, Any] = {"per_second": rates[name]}
    for way, times in latencies.items():
        if mine := times.get(name):
            baseline = latencies[TURNS if way == REFUSED else way].get(sites[name].less) or mine
            found[way] = {"p50": at(mine, 50), "p99": at(mine, 99)}
            found[way] |= {f"added_p{part}": at(mine, part) - at(baseline, part) for part in (50, 99)}
    return found


def at(taken: list[float], percent: int) -> float:
    """Return the percentile of sorted values."""
    return taken[min(len(taken) - 1, len(taken) * percent // 100)]
