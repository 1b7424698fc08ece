"""Bytes of Redis memory for each caller.

After one request: by the growth of used_memory, including the tables of keys and expiry times. After all
requests that the quota allows: by MEMORY USAGE of each key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from ..contest import QUOTA, timed
from ..registry import AWAITED, MAKERS, REMEMBERING, made, reason
from ..setting import Setting

CALLERS = 8_000
#: This many callers use up their whole quota.
BUSY_CALLERS = 50

Gauge = Callable[[redis.Redis], int]


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name: bytes and keys of a caller after one request, and bytes after all that the quota allows."""
    failed: dict[str, str] = {}
    found: dict[str, dict[str, float]] = {}
    with setting.client() as client:
        for name in MAKERS:
            if name in AWAITED or name in REMEMBERING:
                continue
            try:
                once, keys = grown(client, setting, name, setting.few_or(CALLERS), 1, used)
                full, _ = grown(client, setting, name, BUSY_CALLERS, QUOTA, of_keys)
            except Exception as error:  # any error; the others can still be measured
                failed[name] = reason(error)
            else:
                found[name] = {"once": once, "keys": keys, "full": full}
    return {"bytes": found, "failed": failed}


def grown(
    client: redis.Redis, setting: Setting, name: str, number: int, requests: int, gauge: Gauge
) -> tuple[float, float]:
    """Return bytes and keys per caller after some requests of each. Raises RuntimeError if it cannot be created."""
    client.flushall()
    contestants, failed = made(setting.url, [name])
    if failed:
        raise RuntimeError(failed[name])
    [contestant] = contestants
    callers = range(contestant.first + 1, contestant.first + 1 + number)
    before, keys = gauge(client), client.dbsize()
    for _ in range(requests):
        timed(contestant, callers)
    return (gauge(client) - before) / number, (client.dbsize() - keys) / number


def used(client: redis.Redis) -> int:
    """Return the server's bytes for data, after it has resized its tables."""
    time.sleep(0.15)
    info = client.info("memory")
    total: int = info["used_memory"] - info["mem_clients_normal"]
    return total


def of_keys(client: redis.Redis) -> int:
    """Return the sum of all keys."""
    return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(count=1_000))
