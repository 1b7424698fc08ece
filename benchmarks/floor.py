"""The least that any rate limiter does: a token bucket on one key, in one short script.

It counts no usage, compares no version, is inexact, and returns no time to retry. Called through redis-py, and through
its client for event loops.
"""

from __future__ import annotations

from typing import Any, Final

import redis

from .contest import QUOTA, Contestant, address, loop

FLOOR: Final = """
local capacity, rate, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local state = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = math.min(capacity, (tonumber(state[1]) or capacity) + (now - (tonumber(state[2]) or now)) * rate)
local allowed = tokens >= cost
if allowed then tokens = tokens - cost end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(capacity / rate * 1000))
return { allowed and 1 or 0, math.floor(tokens) }
"""


def through_client(url: str, seconds: int) -> Contestant:
    """`client.evalsha`."""
    client = redis.Redis.from_url(url)
    sha, rate = client.script_load(FLOOR), QUOTA / seconds

    def check(key: str) -> bool:
        return bool(client.evalsha(sha, 1, key, QUOTA, rate, 1)[0])

    return Contestant(check, lambda caller: f"floor:{address(caller)}")


def on_event_loop(url: str, seconds: int) -> Contestant:
    """`await client.evalsha`."""
    client = redis.asyncio.Redis.from_url(url)
    sha, rate = loop.run_until_complete(client.script_load(FLOOR)), QUOTA / seconds

    async def check(key: str) -> bool:
        reply: Any = await client.evalsha(sha, 1, key, QUOTA, rate, 1)
        return bool(reply[0])

    return Contestant(check, lambda caller: f"awaited-floor:{address(caller)}", awaited=True)
