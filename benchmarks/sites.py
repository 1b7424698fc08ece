"""The web servers of the stages "web" and "loop", and the requests to them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

from example_project.redis_server import WatchedProcess, free_port

from .contest import CALLERS_EACH, IN_A_ROW, address
from .keepalive import HOST, Connection
from .site.rules import KEY

START_SECONDS: Final = 30.0
CALLERS, FEW = 2_000, 20
#: The order of callers: this many in turn; each with some requests in a row; in turn, and rejected.
TURNS, ROW, REFUSED = "turns", "row", "refused"

GUNICORN: Final = (
    "gunicorn benchmarks.site.wsgi --bind {address} "
    "--workers 1 --worker-class gthread --threads 1 --keep-alive 75 --no-control-socket"
)
UVICORN: Final = (
    "uvicorn benchmarks.site.asgi:application --host {host} --port {port} "
    "--lifespan off --log-level critical --timeout-keep-alive 75"
)


class Site(NamedTuple):
    """A row of the table.

    limiter: in `site.urls`. path: the view. less: the name of the site to compare with. ways: the orders of callers.
    user: whether callers are signed in and have an API key. callers: how many come in turn.
    """

    limiter: str
    path: str = "/three/"
    less: str = "no limiter"
    ways: tuple[str, ...] = (TURNS, ROW)
    user: bool = False
    callers: int = CALLERS

    def headers(self, caller: int) -> dict[str, str]:
        """Return the header fields of this caller."""
        signed_in = {"X-User": str(caller), "X-API-Key": KEY} if self.user else {}
        return {"X-Caller": address(caller)} | signed_in

    def path_for(self, way: str) -> str:
        """Return the path for this order of callers."""
        return "/refused/" if way == REFUSED else self.path


ALL_WAYS: Final = (TURNS, ROW, REFUSED)
EVALSHA, ONLY_CALL = "no limiter, only EVALSHA", "no limiter, only the call for 3 rules"
SIGNED_IN, IN_A_THREAD = "no limiter, user and key", "no limiter, in a thread"
ASYNCHRONOUS = "no limiter, asynchronous view"
REST, REST_LIMITED = "DRF view, no throttle", "DRF view, AnonRateThrottle"
OURS: Final = {
    "no limiter": Site(""),
    SIGNED_IN: Site("", less=SIGNED_IN, user=True),
    EVALSHA: Site("floor"),
    "ours, a view that no rule names": Site("ours", "/free/"),
    "ours, 1 rule": Site("ours", "/one/"),
    "ours, 3 rules": Site("ours", ways=ALL_WAYS),
    "ours, 3 rules, no response fields": Site("ours, no fields", ways=ALL_WAYS),
    "ours, 3 rules, synced each second": Site("ours", "/synced/"),
    "ours, 3 rules, synced each second, 20 callers": Site("ours", "/synced-few/", ways=(TURNS,), callers=FEW),
    "ours, 3 rules and tiers": Site("ours, tiers"),
    "ours, 3 rules, user and key, and tiers": Site("ours, tiers", "/known/", SIGNED_IN, user=True),
}
PEERS: Final = {
    "django-ratelimit": "django-ratelimit",
    "django-smart-ratelimit": "django-smart-ratelimit",
    "limits, fixed window": "limits",
    "throttled-py, token bucket": "throttled-py",
    "pyrate-limiter, token bucket": "pyrate-limiter",
}
#: Under gunicorn.
SITES: Final = {
    **OURS,
    ONLY_CALL: Site("bare"),
    ASYNCHRONOUS: Site("", "/asks/", ASYNCHRONOUS),  # Django makes an event loop for each request
    "ours, 1 rate in an asynchronous view": Site("ours", "/asks/", ASYNCHRONOUS),
    **{name: Site(limiter, ways=ALL_WAYS) for name, limiter in PEERS.items()},
    REST: Site("DRF, no limiter", less=REST),
    REST_LIMITED: Site("DRF", less=REST, ways=ALL_WAYS),
}
#: Under uvicorn. Peers decide in a thread, as does a synchronous view.
SITES_ON_LOOP: Final = {
    **OURS,
    IN_A_THREAD: Site("", "/in-a-thread/", IN_A_THREAD),
    **{name: Site(limiter, less=IN_A_THREAD, ways=ALL_WAYS) for name, limiter in PEERS.items()},
}


class Server:
    """A web server with one limiter before its views."""

    def __init__(self, limiter: str, folder: Path, *, on_loop: bool) -> None:
        self.port = free_port()
        folder.mkdir(parents=True)
        text = (UVICORN if on_loop else GUNICORN).format(address=f"{HOST}:{self.port}", host=HOST, port=self.port)
        environment = [f"BENCH_LIMITER={limiter}", f"BENCH_LOOP={'1' * on_loop}"]
        self._process = WatchedProcess(["/usr/bin/env", *environment, sys.executable, "-m", *text.split()], folder)

    def wait(self) -> None:
        """Wait for a response. Raises RuntimeError if there is none, or its status is not 200."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.running:
            try:
                connection = Connection(self.port)
                status = connection.get("/free/", {"X-Caller": address(0)})
            except OSError:
                time.sleep(0.1)
                continue
            connection.close()
            if status == 200:
                return
            break
        raise RuntimeError(f"It did not answer 200: {self._process.output[-150:]}")

    def stop(self) -> None:
        """Stop it, if it is running."""
        if self._process.running:
            self._process.stop()


def callers_of(number: int, site: Site, way: str, callers: int) -> Iterator[int]:
    """Yield the callers of the site with this number, in this order: those in turn without end.

    callers: maximum number of callers in turn.
    """
    first = (number * len(ALL_WAYS) + ALL_WAYS.index(way) + 1) * CALLERS_EACH
    everybody = range(first, first + min(site.callers, callers))
    if way == ROW:
        return (caller for caller in range(first, first + CALLERS_EACH) for _ in range(IN_A_ROW))
    return cycle(everybody)
