"""A worker that decides requests in several calls until it is killed; the other end of `test_killed_workers`.

Run: python -m tests.system.working SEED. After each request it prints its caller, and what has become of it, as JSON:
for each rule the outcome and the units that it has cost.
"""

from __future__ import annotations

import json
import os
import random
import sys

from django.test import RequestFactory

CALLERS = 30
ESTIMATE, MOST = 5, 9


def work(seed: int) -> None:
    from django_ratelimiter import limiter

    chance, make = random.Random(seed), RequestFactory()
    while True:
        request = make.get("/", REMOTE_ADDR=f"203.0.113.{chance.randrange(CALLERS)}")
        limiter.check(request)
        with limiter.charge(request, scope="tokens", cost=ESTIMATE) as charge:
            charge.cost = cost = chance.randint(1, MOST)
        if limiter.check(request, scope="last", cost=3).allowed:
            became = {"site": ("allowed", 2), "tokens": ("allowed", cost), "last": ("allowed", 3)}
        else:  # what was settled beyond the estimate stays charged
            other = "rejected_by_other"
            became = {"site": (other, 0), "tokens": (other, max(cost - ESTIMATE, 0)), "last": ("rejected", 0)}
        os.write(sys.stdout.fileno(), f"{json.dumps([request.META['REMOTE_ADDR'], became])}\n".encode())


if __name__ == "__main__":
    import django

    django.setup()
    work(int(sys.argv[1]))
