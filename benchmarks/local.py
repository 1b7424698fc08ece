"""The time of a local decision: `python -m benchmarks.local`.

With the floor, like `benchmarks.engine`: approximate mode between two calls of Redis, a remembered
rejection, and what the wrapper adds to an exact call.
"""

from __future__ import annotations

import redis

from benchmarks import engine as engines
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.local.counters import LocalCounters
from django_ratelimiter.engine.local.engine import LocalFirstEngine
from django_ratelimiter.engine.redis import RedisEngine

#: Nothing is synced during a round.
LONG = 3_600.0

WIDE = Limit(1_000_000_000, 60)
NEAR = [Charge(f"near-{number}", WIDE, usage=f"near-{number}|pro", sync_interval=LONG) for number in range(3)]
OWN = Charge("own", Limit(1_000_000_000, 86_400), usage="own|pro", sync_interval=-1.0)
TIGHT = Charge("tight", Limit(1, 86_400, "token_bucket"), usage="tight|pro")


def contestants(client: redis.Redis) -> engines.Calls:
    """Return the calls to time, the floor first."""
    exact = RedisEngine(client, "local")
    exact.publish(1)
    ours = LocalFirstEngine(exact, LocalCounters(LONG, LONG))
    plain = LocalFirstEngine(exact, LocalCounters())
    floor, call = next(iter(engines.contestants(client).items()))
    return {
        floor: call,
        "1 charge, exact": lambda: exact.check(engines.CHARGES[:1], version=1),
        "  by way of local counters": lambda: plain.check(engines.CHARGES[:1], version=1),
        "  where refusals are remembered": lambda: ours.check(engines.CHARGES[:1], version=1),
        "approximate": lambda: ours.check(NEAR[:1], version=1),
        "approximate, 3 charges": lambda: ours.check(NEAR, version=1),
        "purely local": lambda: ours.check([OWN], version=1),
        "refusal remembered": lambda: ours.check([TIGHT], version=1),
        "refusal remembered, 3 charges": lambda: ours.check([TIGHT, *engines.CHARGES[1:]], version=1),
    }


if __name__ == "__main__":
    engines.main(contestants)
