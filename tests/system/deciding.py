"""Processes that decide requests by all kinds of rules, and note what they decided; the chaos test's other end.

Run: python -m tests.system.deciding REQUESTS PROCESSES. It prints "begun", decides so many requests in all, prints
"done", reads a line, has every process tell the engine what it still owes, and prints as JSON what `Noted` describes.
An engine that is away is asked again after a fraction of a second, so that it decides most of the requests.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django.test import RequestFactory

TIERS = ("", "free", "pro")
PATHS = ("/one/", "/two/", "/three/")
CALLERS = 40
#: Of the second call for a request.
MAX_COST = 3

#: Worse outcomes of a rule's limits go before the others.
OUTCOMES = ("allowed", "soft_exceeded", "rejected")


@dataclass
class Noted:
    """What happened, in requests; keys are "RULE|TIER OUTCOME", those of lost "RULE|TIER".

    decided: by the limiter, as its decisions say; `degraded` beside the outcome where it was decided without Redis.
    lost: calls whose reply did not come, though the server may have run them.
    """

    decided: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    lost_calls: int = 0

    def note(self, decision: Any) -> None:
        """Add what each rule said of a request."""
        self.requests += 1
        worst: dict[tuple[str, str, bool], str] = {}
        costs: dict[str, int] = {}
        for result in decision.results:
            label = f"{result.rule.slug}|{result.tier.slug if result.tier else ''}"
            key = label, result.mode, result.verdict is None or result.local
            costs[label] = result.verdict.charge.cost if result.verdict else 1
            worst[key] = max(worst.get(key, "allowed"), _outcome(result), key=OUTCOMES.index)
        for (label, mode, is_degraded), outcome in worst.items():
            if outcome != "rejected" and not decision.allowed:
                outcome = "rejected_by_other"
            elif outcome == "soft_exceeded":
                self.decided[f"{label} allowed"] += 1
            elif outcome == "rejected" and mode == "shadow":
                outcome = "shadow_rejected"
            self.decided[f"{label} units"] += costs[label] * (outcome in ("allowed", "soft_exceeded"))
            self.decided[f"{label} {outcome}"] += 1
            self.decided[f"{label} degraded"] += is_degraded

    def watch(self, engine: Any) -> None:
        """Count the calls of an engine whose reply is lost."""
        from django_ratelimiter.engine import EngineUnavailable
        from tests.outages.stack import may_have_been_run

        check = engine.check

        def watched(charges: Any, **options: Any) -> Any:
            try:
                return check(charges, **options)
            except EngineUnavailable as error:
                if may_have_been_run(error):
                    self.lost_calls += 1
                    self.lost.update({charge.usage for charge in charges if charge.usage})
                    self.lost.update({each.line.removeprefix("~") for each in charges.so_far})
                raise

        engine.check = watched


def _outcome(result: Any) -> str:
    if result.verdict is None:
        return "rejected" if result.rule.failure_policy == "closed" else "allowed"
    if not result.verdict.allowed:
        return "rejected"
    return "soft_exceeded" if result.verdict.soft_exceeded else "allowed"


def tier_of(identity: Any) -> str | None:
    """The TIER_RESOLVER of these processes: the request says it."""
    return identity.value("header:X-Tier")


def decide(requests: int, number: int) -> Noted:
    """What one process does."""
    from django_ratelimiter import limiter
    from django_ratelimiter.backend import get_engine
    from django_ratelimiter.engine import EngineUnavailable

    noted, chance, make = Noted(), random.Random(number), RequestFactory()
    engine: Any = get_engine()
    noted.watch(engine.engine)
    together.wait()
    for _ in range(requests):
        request = make.get(
            chance.choice(PATHS),
            headers={"X-Tier": chance.choice(TIERS)},
            REMOTE_ADDR=f"203.0.113.{chance.randrange(CALLERS)}",
        )
        decision = limiter.check(request)
        if decision.allowed and chance.random() < 0.5:
            decision = limiter.check(request, scope="later", cost=chance.randint(1, MAX_COST))
        noted.note(decision)
    together.wait()
    stop.wait()
    deadline = time.monotonic() + 30
    usage = engine.counters.usage
    while usage and time.monotonic() < deadline:
        engine.flush()
        try:
            engine.engine.peek([])
        except EngineUnavailable:
            time.sleep(0.05)
    assert not usage
    return noted


def work(requests: int, number: int, results: Any) -> None:
    try:
        noted = decide(requests, number)
    except BaseException:
        together.abort()  # else the others would wait for this one
        raise
    results.put((noted.decided, noted.lost, noted.requests, noted.lost_calls))


def main(requests: int, processes: int) -> None:
    """Let them decide, and sum up."""
    import django
    from django.conf import settings
    from django.test import override_settings

    from django_ratelimiter.engine import breaker

    django.setup()
    logging.getLogger("django_ratelimiter").setLevel(logging.CRITICAL)
    breaker.MAX_WAIT = 0.1  # type: ignore[misc]
    ours = {"TIER_RESOLVER": "tests.system.deciding.tier_of", "DENIAL_MEMORY": 0.2, "VERSION_CHECK_INTERVAL": 0.2}
    with override_settings(RATELIMITER={**settings.RATELIMITER, **ours}):
        results = fork.Queue()
        shares = [len(range(number, requests, processes)) for number in range(processes)]
        workers = [fork.Process(target=work, args=(share, number, results)) for number, share in enumerate(shares)]
        for worker in workers:
            worker.start()
        together.wait()
        print("begun", flush=True)
        together.wait()
        print("done", flush=True)
        sys.stdin.readline()
        stop.set()
        total = Noted()
        for _ in workers:
            decided, lost, so_many, lost_calls = results.get(timeout=300)
            total.decided += decided
            total.lost += lost
            total.requests += so_many
            total.lost_calls += lost_calls
        for worker in workers:
            worker.join()
    print(json.dumps(vars(total)))


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    stop, together = fork.Event(), fork.Barrier(int(sys.argv[2]) + 1, timeout=900)
    main(int(sys.argv[1]), int(sys.argv[2]))
