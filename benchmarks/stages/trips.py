"""Round trips to Redis for each decision, counted by a proxy in between."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from ..contest import Contestant, exhaust, new_callers, timed
from ..proxy import HOST, CountingProxy
from ..registry import made, reason
from ..setting import Setting

CALLS = 100


def measure(setting: Setting) -> dict[str, Any]:
    """Return round trips by case and name; a new caller is among the allowed ones."""
    parts = urlsplit(setting.url)
    with CountingProxy(parts.port or 6379) as proxy:
        url = parts._replace(netloc=f"{HOST}:{proxy.port}").geturl()
        os.environ["BENCH_REDIS_URL"] = url  # Django is not set up yet
        contestants, failed = made(url)
        found: dict[str, dict[str, float]] = {"allowed": {}, "denied": {}}
        for each in contestants:
            try:
                allowed, denied = trips(each, proxy)
            except Exception as error:  # any error; the others can still be measured
                failed[each.name] = reason(error)
            else:
                found["allowed"][each.name], found["denied"][each.name] = allowed, denied
    return found | {"failed": failed}


def trips(contestant: Contestant, proxy: CountingProxy) -> tuple[float, float]:
    """Return the round trips for each allowed request, and for each rejected one."""
    callers = new_callers(contestant)
    timed(contestant, list(islice(callers, CALLS)))
    before = proxy.trips
    timed(contestant, list(islice(callers, CALLS)))
    allowed = proxy.trips - before
    exhaust(contestant)
    before = proxy.trips
    timed(contestant, [contestant.refused] * CALLS)
    return allowed / CALLS, (proxy.trips - before) / CALLS
