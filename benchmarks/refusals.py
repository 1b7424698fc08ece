"""The time of recording rejected callers in Redis: `python -m benchmarks.refusals [ROUNDS]` (REDIS_SERVER: which).

Three scripts run on one server in turn, in rounds of 200 calls: one records nothing, one records as usual,
and one records each rejection, as usually only the first of a minute. They differ in one condition. The same is done
with several server processes. The table shows the medians, and those of the ratios to the first script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha1
from itertools import cycle
from statistics import median

import redis

from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.partition_stats import is_sampled
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.engine.redis.scripts import CHECK, CHECK_SHA
from django_ratelimiter.engine.templates import CallTemplate, ChargeTemplate, FilledCharges
from example_project.redis_server import redis_url

from .engine import Round, timed

CONDITION = b"(counted <= 20 or counted % 20 == 0)"
SCRIPTS = {"none": b"false", "as it does": CONDITION, "each": b"true"}
SERVERS = 5
#: Calls of sampled callers are more expensive.
CALLERS = [whom for whom in (f"{number:022}" for number in range(60)) if not is_sampled(whom)]


def call_of(client: redis.Redis, namespace: str, condition: bytes, quota: int, rules: int) -> Callable[[], object]:
    """Return a function that makes a call of the next caller each time."""
    assert CHECK.count(CONDITION) == 1
    script = CHECK.replace(CONDITION, condition)
    client.script_load(script)
    sha = sha1(script, usedforsecurity=False).hexdigest().encode()
    engine = RedisEngine(client, namespace)
    engine.publish(1)
    template = CallTemplate(
        [
            ChargeTemplate(f"rule-{number}:", "", Charge("", Limit(quota, 86_400), usage=f"rule-{number}|free"))
            for number in range(rules)
        ]
    )
    filled = [FilledCharges(template, (caller,) * rules) for caller in CALLERS]
    for charges in [*filled, *filled]:  # so that no caller is new, and rejected ones have no quota left
        engine.check(charges, version=1)
    turns = cycle(filled)

    def call() -> None:
        packed = engine.encode_filled(next(turns), 1)
        assert packed
        engine._transport.call(packed[0].replace(CHECK_SHA, sha))

    return call


def measured(client: redis.Redis, rules: int, quota: int, rounds: int) -> list[list[Round]]:
    """Return the rounds of each script, measured in turn."""
    calls = [
        call_of(client, f"refusals{rules}{quota}{number}", condition, quota, rules)
        for number, condition in enumerate(SCRIPTS.values())
    ]
    made: list[list[Round]] = [[] for _ in calls]
    for number in range(rounds):
        for place in range(len(calls)):  # each begins equally often
            turn = (number + place) % len(calls)
            made[turn].append(timed(calls[turn], client))
    return made


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    found: dict[str, list[list[Round]]] = {}
    for _ in range(SERVERS):
        with redis_url() as url, redis.Redis.from_url(url) as client:
            for rules in (1, 3):
                for outcome, quota in (("allowed", 10**8), ("refused", 1)):
                    rows = found.setdefault(f"{rules} rules, {outcome}", [[] for _ in SCRIPTS])
                    for row, made in zip(rows, measured(client, rules, quota, rounds), strict=True):
                        row += made
    print(f"{'us in the script, us of the call':34}", *(f"{name:>28}" for name in SCRIPTS))
    for name, rows in found.items():
        print(f"{name:34}", *(f"{figures(row, rows[0]):>28}" for row in rows))


def figures(mine: list[Round], first: list[Round]) -> str:
    """Return the medians of a script's rounds, and of their ratios to those of the first one."""
    texts = []
    for part in ("script", "call"):
        pairs = [(getattr(a, part), getattr(b, part)) for a, b in zip(mine, first, strict=True)]
        more = median(a / b for a, b in pairs) - 1
        texts.append(f"{median(a for a, _ in pairs):6.2f} {more:+6.1%}")
    return "  ".join(texts)


if __name__ == "__main__":
    main()
