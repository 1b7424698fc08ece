"""The memory of a key and of a logged request: `python -m benchmarks.memory` (REDIS_SERVER selects the server).

Every key has a 40-character partition. It is measured by MEMORY USAGE, which includes only the key, and by the growth
of used_memory for each of 100,000 keys, which includes the tables of keys and expiry times as well. A logged request is
the maximum by MEMORY USAGE, without 165 bytes for the key, in logs of several sizes; and the growth of used_memory for
each of 100,000 requests in logs of one size, including keys.
"""

from __future__ import annotations

import redis

from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.engine.redis import RedisEngine
from example_project.redis_server import RedisServer

KEYS, PER_CALL = 100_000, 500
DAY, NOON = 86_400, 20_000 * 86_400_000_000 + 43_200_000_000

LIMITS = {
    **{str(algorithm): Limit(1_000, 3_600, algorithm) for algorithm in Algorithm},
    "fixed_window, first_request": Limit(1_000, 3_600, "fixed_window", anchor="first_request"),
    "fixed_window, calendar": Limit(1_000, calendar="month", algorithm="fixed_window", timezone="Europe/Berlin"),
    "token_bucket, interval": Limit(1_000, 3_600, "token_bucket", refill="interval"),
}


def used(client: redis.Redis) -> int:
    """Return the server's used_memory, in bytes."""
    total: int = client.info("memory")["used_memory"]
    return total


def of_a_key(limit: Limit, spendings: int) -> tuple[int, float]:
    """Return the bytes of a key that was charged this often in its window: by MEMORY USAGE, and by used_memory."""
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client)
        charges = [Charge(f"{number:040d}", limit) for number in range(KEYS)]
        engine.publish(1)
        engine.peek(charges[:PER_CALL])
        before = used(client)
        for first in range(0, KEYS, PER_CALL):
            for spending in range(spendings):
                engine.check(charges[first : first + PER_CALL], now_us=NOON + spending * limit.window_us // spendings)
        grown = used(client) - before
        return client.memory_usage(f"{{rl:0}}:{charges[0].key}{limit.tag}"), grown / KEYS


def of_a_log(entries: int) -> tuple[float, float]:
    """Return the bytes of a logged request: the maximum by MEMORY USAGE without the key's 165, and by used_memory."""
    limit = Limit(entries, DAY, "sliding_window_log")
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(client)
        charges = [Charge(f"{number:040d}", limit) for number in range(KEYS // entries)]
        engine.publish(1)
        engine.peek(charges)
        before, worst = used(client), 0.0
        for entry in range(1, entries + 1):
            engine.check(charges, now_us=NOON + entry)
            worst = max(worst, (client.memory_usage(f"{{rl:0}}:{charges[0].key}{limit.tag}") - 165) / entry)
        return worst, (used(client) - before) / KEYS


def main() -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        info = client.info()
    name = f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info['redis_version']}"
    print(f"{name}, {info['mem_allocator']}: bytes\n\n{'a key':36}{'MEMORY USAGE':>14}{'used_memory':>14}")
    for name, limit in LIMITS.items():
        usage, grown = of_a_key(limit, 1)
        print(f"{name:36}{usage:14d}{grown:14.1f}")
    usage, grown = of_a_key(LIMITS["sliding_window_slots"], 10)
    print(f"{'sliding_window_slots, all 10 slots':36}{usage:14d}{grown:14.1f}")
    print(f"\n{'a logged request':36}{'MEMORY USAGE':>14}{'used_memory':>14}")
    for entries in (100, 1_000, 10_000):
        worst, grown = of_a_log(entries)
        print(f"{f'among {entries:,}':36}{worst:14.1f}{grown:14.1f}")


if __name__ == "__main__":
    main()
