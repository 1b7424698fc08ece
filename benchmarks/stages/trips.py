"""Round trips to Redis for each decision, counted by a proxy in between."""

from __future__ import annotations

import os
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from ..contest import Contestant, new_callers, timed
from ..proxy import HOST, CountingProxy
from ..registry import made, reason
from ..setting import Setting

CALLS = 100


def measure(setting: Setting) -> dict[str, Any]:
    """Return round trips of an allowed request by name; each 25th is of a new caller."""
    parts = urlsplit(setting.url)
    with CountingProxy(parts.port or 6379) as proxy:
        url = parts._replace(netloc=f"{HOST}:{proxy.port}").geturl()
        os.environ["BENCH_REDIS_URL"] = url  # Django is not set up yet
        contestants, failed = made(url)
        found: dict[str, float] = {}
        for each in contestants:
            try:
                found[each.name] = trips(each, proxy)
            except Exception as error:  # any error; the others can still be measured
                failed[each.name] = reason(error)
    return {"trips": found, "failed": failed}


def trips(contestant: Contestant, proxy: CountingProxy) -> float:
    """Return the round trips for each allowed request."""
    callers = new_callers(contestant)
    timed(contestant, list(islice(callers, CALLS)))
    before = proxy.trips
    timed(contestant, list(islice(callers, CALLS)))
    return (proxy.trips - before) / CALLS
