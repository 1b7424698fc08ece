"""Eight processes that hit one key at once: `python -m tests.engine.hits URL ALGORITHM` prints how many got in."""

from __future__ import annotations

import multiprocessing
import sys

import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.redis import RedisEngine

PROCESSES, HITS, QUOTA = 8, 500, 1_234

#: No limit of these gives anything back while the processes are at work: the next window is months away.
LIMITS = {
    "fixed_window": Limit(QUOTA, 366 * 86_400, "fixed_window"),
    "sliding_window_counter": Limit(QUOTA, 366 * 86_400, "sliding_window_counter"),
    "token_bucket": Limit(1, 86_400, "token_bucket", burst=QUOTA),
}


def hit(url: str, algorithm: str) -> int:
    """What one process does; how many of its hits were admitted."""
    with redis.Redis.from_url(url) as client:
        engine = RedisEngine(client, "hits")
        charge = Charge("key", LIMITS[algorithm], usage="rule|")
        return sum(engine.check([charge])[0].allowed for _ in range(HITS))


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
        print(sum(pool.starmap(hit, [tuple(sys.argv[1:])] * PROCESSES, chunksize=1)))
        pool.close()
        pool.join()
