"""Usage under everything at once: SQL holds what was decided, whoever collects, is killed, or comes back.

Four processes decide by all kinds of rules, as a site does. Meanwhile two collectors run at once, are killed before
random steps and at random moments, and Redis, which writes every change to disk, is killed and started again.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db.models import Sum

from django_ratelimiter.models import Rule, RuleLimit, Tier, UsageBatch, UsageBucket
from django_ratelimiter.rules import cache
from tests.clusters import ServerWith
from tests.system.deciding import MAX_COST
from tests.usage.test_crash import Collector

PROCESSES = 4
#: After so many requests, every kind of rule has said all that it can say.
MANY = 10_000
FIELDS = UsageBucket.COUNTS
OUTCOMES = ("allowed", "rejected", "shadow_rejected", "rejected_by_other")
DAY = 86_400


@pytest.fixture
def rules() -> None:
    """Enforced and in shadow, wide and narrow, exact and counted in processes, with each failure policy."""
    with cache.editing():
        tiers = {
            slug: Tier.objects.create(slug=slug, name=slug, rank=rank) for rank, slug in enumerate(("free", "pro"))
        }

        def rule(slug: str, limits: list[dict[str, Any]], path: str = "", **fields: Any) -> None:
            kind = "exact" if path else "any"
            made = Rule.objects.create(
                slug=slug, name=slug, path=path, path_kind=kind, partition_by=["ip"], **{"mode": "enforce", **fields}
            )
            for limit in limits:
                tier = tiers.get(limit.pop("tier", ""))
                RuleLimit.objects.create(rule=made, tier=tier, **{"window_seconds": DAY, **limit})

        wide = {"quota": 10_000_000, "algorithm": "token_bucket"}
        rule("wide", [wide], failure_policy="open")
        narrow = {"algorithm": "sliding_window_counter", "quota": 20}
        rule("narrow", [narrow, {**narrow, "tier": "pro", "quota": 60}], "/one/", failure_policy="local")
        rule("shadow", [{"quota": 15, "algorithm": "fixed_window"}], mode="shadow", failure_policy="closed")
        soft = {"algorithm": "fixed_window", "quota": 90, "soft_quota": 2}
        rule("soft", [soft, {**wide, "tier": "free"}], "/two/", failure_policy="closed")
        several = [{"algorithm": "fixed_window", "quota": 5, "window_seconds": 10}, {**wide, "window_seconds": DAY}]
        rule("several", several, "/two/", failure_policy="local")
        rough = {"algorithm": "fixed_window", "quota": 10, "window_seconds": 60}
        rule("rough", [rough], "/three/", sync_interval_ms=100, failure_policy="local")
        rejecting = {"algorithm": "token_bucket", "quota": 5, "window_seconds": 60}
        rule("rejecting", [rejecting], "/three/", count_refusals=True, failure_policy="open")
        last = {"algorithm": "fixed_window", "quota": 7}
        rule("last", [last], scope="later", failure_policy="closed")  # decided by a second call for a request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerWith]:
    """The Redis of the other processes, which loses nothing that it has answered."""
    with ServerWith(appendonly="yes", appendfsync="always") as server:
        monkeypatch.setenv("TEST_REDIS_URL", server.url)
        monkeypatch.setenv("COLLECTOR_AHEAD", "120")
        monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
        yield server


class Deciders:
    """`tests.system.deciding` in a process of its own."""

    def __init__(self, requests: int) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.system.deciding", str(requests), str(PROCESSES)]
        root = Path(__file__).parents[2]
        self.program = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.done = threading.Event()
        assert self.line() == "begun\n"
        self._reader = threading.Thread(target=self._wait)
        self._reader.start()

    def line(self) -> str:
        assert self.program.stdout
        return self.program.stdout.readline()

    def _wait(self) -> None:
        self.line()
        self.done.set()

    def noted(self) -> dict[str, Any]:
        """What they have noted in all, once they have told the engine everything."""
        self._reader.join()
        told, _ = self.program.communicate("stop\n", timeout=120)
        assert self.program.returncode == 0
        noted: dict[str, Any] = json.loads(told)
        return noted


@contextmanager
def deciding(requests: int) -> Iterator[Deciders]:
    deciders = Deciders(requests)
    try:
        yield deciders
    finally:
        if deciders.program.poll() is None:
            deciders.program.kill()


def keep_collecting(collector: Collector, done: threading.Event, chance: random.Random) -> Counter[str]:
    """Collect again and again, mostly not to the end; both at least once. How the collections ended."""
    ends: Counter[str] = Counter()
    orders: list[Callable[[], str]] = [
        lambda: "run",
        lambda: f"kill {chance.randrange(20)}",
        lambda: f"die {chance.uniform(0.001, 0.2):.4f}",
    ]
    while not (done.is_set() and ends["whole"] and ends["before a step"]):
        order = chance.choice(orders)()
        collector.start(order)
        assert collector.wait(300), f"no end of {order!r} after {collector.steps}"
        ends[{0: "whole", -9: "before a step", -14: "at a moment"}.get(collector.code or 0, "failed")] += 1
        done.wait(chance.uniform(0, 0.1))
    return ends


def keep_killing(server: ServerWith, done: threading.Event, chance: random.Random) -> int:
    """Kill the server and start it again, again and again, once at least; how often."""
    kills = 0
    while not done.wait(chance.uniform(0.5, 2.5)) or not kills:
        server.kill()
        kills += 1
        done.wait(chance.uniform(0, 0.1))
        server.start()
    return kills


def collected() -> Counter[str]:
    """What the usage buckets hold, the same at every granularity; as "RULE|TIER OUTCOME"."""
    found: dict[str, Counter[str]] = {}
    sums = UsageBucket.objects.order_by().values("granularity", "rule_slug", "tier_slug")
    for row in sums.annotate(**{f"sum_{name}": Sum(name) for name in FIELDS}):
        counts = found.setdefault(row["granularity"], Counter())
        for name in FIELDS:
            counts[f"{row['rule_slug']}|{row['tier_slug']} {name}"] += row[f"sum_{name}"]
    assert found["minute"] == found["hour"] == found["day"]
    return found["minute"]


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(MANY, marks=pytest.mark.long),
        pytest.param(10 * MANY, marks=pytest.mark.long),  # on a loaded machine it takes many minutes
        pytest.param(500, marks=pytest.mark.once),
    ],
)
@pytest.mark.usefixtures("rules")
def test_every_request_is_counted_once(requests: int, server: ServerWith) -> None:
    chance = random.Random(requests)
    began = time.monotonic()
    with ExitStack() as stack:
        collectors = []
        for _ in range(2):
            collectors.append(Collector())
            stack.callback(collectors[-1].close)
        deciders = stack.enter_context(deciding(requests))
        with ThreadPoolExecutor() as threads:
            done = deciders.done
            ends = [threads.submit(keep_collecting, each, done, random.Random(chance.random())) for each in collectors]
            kills = threads.submit(keep_killing, server, done, random.Random(chance.random())).result()
            ended = sum((each.result() for each in ends), Counter[str]())
        noted = deciders.noted()
        for collector in collectors:  # the second finds nothing left
            collector.start("run")
            assert collector.wait(300)
            assert collector.code == 0
    with server.client() as client:
        assert list(client.scan_iter("*batch*")) == []

    decided, lost, counted = Counter(noted["decided"]), Counter(noted["lost"]), collected()
    print(
        f"{requests} requests, {time.monotonic() - began:.0f} s, Redis killed {kills} times, collections ended {ended}"
    )
    by_redis = (
        1 - sum(decided[key] for key in decided if key.startswith("wide|") and key.endswith("degraded")) / requests
    )
    print(f"{by_redis:.0%} decided by Redis")
    print(f"{noted['lost_calls']} replies lost, {UsageBatch.objects.count()} batches: {sorted(decided.items())}")
    assert noted["requests"] == requests
    assert kills > 0
    if requests >= MANY:
        assert_kinds_were_met(decided)
    labels = {key.partition(" ")[0] for key in (*decided, *counted)}
    for label in labels:
        beyond = {name: counted[f"{label} {name}"] - decided[f"{label} {name}"] for name in FIELDS}
        assert beyond["degraded"] == 0, label
        assert min(beyond.values()) >= 0, (label, beyond)
        assert sum(beyond[outcome] for outcome in OUTCOMES) <= lost[label], (label, beyond)
        assert beyond["soft_exceeded"] <= lost[label], (label, beyond)
        assert beyond["units"] <= MAX_COST * lost[label], (label, beyond)


def assert_kinds_were_met(decided: Counter[str]) -> None:
    """Every kind of rule has said all that it can say."""
    said = {f"{key.partition('|')[0]} {key.rpartition(' ')[2]}" for key, count in decided.items() if count}
    for kind in ("wide", "narrow", "soft", "several", "rough", "rejecting"):
        assert f"{kind} allowed" in said
        assert f"{kind} degraded" in said
    for kind in ("narrow", "soft", "several", "rough", "rejecting", "last"):
        assert f"{kind} rejected" in said
    for kind in ("wide", "narrow", "soft", "rough", "shadow"):
        assert f"{kind} rejected_by_other" in said
    assert {"shadow shadow_rejected", "soft soft_exceeded"} <= said
