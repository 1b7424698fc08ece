"""Collectors that are killed, that overlap, and counts that come late: SQL holds what was decided, no more, no less."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread

import pytest
import redis
from django.db.models import Sum

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Algorithm, Charge, Limit
from django_ratelimiter.engine.partition_stats import is_sampled
from django_ratelimiter.models import CallerUsage, TopPartition, UsageBucket, UsageSample
from django_ratelimiter.usage.collector.collect import collect
from django_ratelimiter.usage.times import start_of

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000
#: A partition that is sampled.
SAMPLED = next(name for name in map(str, range(3, 1_000)) if is_sampled(name))
PAST_US = 29_000_000 * MINUTE_US
LIMITS = {
    "few|free": Limit(3, 86_400, Algorithm.FIXED_WINDOW),
    "many|pro": Limit(1_000, 86_400, Algorithm.FIXED_WINDOW),
}

#: Seconds without news after which a collector is taken to wait for another one's lock.
QUIET = 0.25

#: By label: the number of requests that were allowed, rejected, and rejected by another rule.
Outcomes = Counter[tuple[str, str]]


class Collector:
    """The other end: `tests.usage.collector` in a process of its own, and what it said of its latest collection."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.usage.collector"],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: SimpleQueue[str] = SimpleQueue()
        self.reader = Thread(target=self._read, daemon=True)
        self.reader.start()
        self.steps: list[str] = []
        self.code: int | None = None

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put("gone")

    def tell(self, line: str) -> None:
        assert self.process.stdin
        print(line, file=self.process.stdin, flush=True)

    def start(self, line: str) -> None:
        self.steps, self.code = [], None
        self.tell(line)

    def wait(self, seconds: float = 300) -> bool:
        """Read on until it has ended, with `code`, or paused. False if no news came for so many seconds."""
        try:
            while self.code is None:
                word, _, rest = self.lines.get(timeout=seconds).partition(" ")
                assert word != "gone", "The collector's process has ended."
                if word == "paused":
                    break
                if word == "ended":
                    self.code = int(rest)
                else:
                    self.steps.append(rest)
        except Empty:
            return False
        return True

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.reader.join()
        self.process.stdout.close()


@pytest.fixture
def collector() -> Iterator[Callable[[], Collector]]:
    """Start collecting processes."""
    started: list[Collector] = []

    def start() -> Collector:
        started.append(Collector())
        return started[-1]

    yield start
    for one in started:
        one.close()


def decide(decided: Outcomes, minute: int = 0, times: int = 5) -> None:
    """Let requests meet both rules in a minute that is long past, and note what each rule decided."""
    now_us = PAST_US + minute * MINUTE_US
    charges = [Charge(f"{label}:{minute}", limit, usage=label, exact=True) for label, limit in LIMITS.items()]
    for _ in range(times):
        verdicts = get_engine().check(charges, now_us=now_us)
        passed = "allowed" if all(verdict.allowed for verdict in verdicts) else "rejected_by_other"
        for verdict in verdicts:
            assert verdict.charge.usage
            decided[verdict.charge.usage, passed if verdict.allowed else "rejected"] += 1


def collected() -> Outcomes:
    """What the usage buckets hold, the same at every granularity."""
    fields, names = ("granularity", "rule_slug", "tier_slug"), ("allowed", "rejected", "rejected_by_other")
    sums = UsageBucket.objects.order_by().values_list(*fields).annotate(*map(Sum, names))
    outcomes: dict[str, Outcomes] = {granularity: Counter() for granularity in UsageBucket.Granularity.values}
    for granularity, rule, tier, *counts in sums:
        outcomes[granularity] += Counter({(f"{rule}|{tier}", name): n for name, n in zip(names, counts, strict=True)})
    assert outcomes["minute"] == outcomes["hour"] == outcomes["day"]
    exact = CallerUsage.objects.order_by().values_list("rule_slug").annotate(*map(Sum, names))
    tiers = {label.partition("|")[0]: label for label in LIMITS}
    counts_of = {(tiers[rule], name): n for rule, *counts in exact for name, n in zip(names, counts, strict=True)}
    assert Counter(counts_of) == outcomes["minute"]
    return outcomes["minute"]


def assert_every_step_was_met(seen: Counter[str]) -> None:
    """Two batches of two rules each, in a minute, an hour and a day."""
    assert seen["end"] == seen["take_usage"] == seen["publish"] == 1
    added, counted = (f'INSERT INTO "django_ratelimiter_{table}"' for table in ("usagebatch", "usagebucket"))
    for once_for_each_batch in ("read_usage", added, counted, "drop_usage"):
        assert seen[once_for_each_batch] == 2
    assert seen["_commit"] >= 2


def collect_at_once(others: list[Collector]) -> None:
    """Collect here and in the other processes."""
    for other in others:
        other.start("run")
    collect()
    for other in others:
        assert other.wait()
        assert other.code == 0


def test_killed_before_each_of_its_steps(collector: Callable[[], Collector]) -> None:
    killed, decided, seen = collector(), Outcomes(), Counter[str]()
    for step in range(100):
        decide(decided, minute=2 * step)
        decide(decided, minute=2 * step + 1)
        killed.start(f"kill {step}")
        assert killed.wait()
        assert killed.code in (-9, 0)
        if killed.code == 0:
            break
        seen[killed.steps[-1]] += 1
        decide(decided, minute=2 * step, times=1)  # late: this minute may be a batch already
        collect()
        assert collected() == decided, f"killed before step {step}: {killed.steps[-1]}"
        assert get_engine().take_usage() == []
    assert_every_step_was_met(seen)


def test_paused_before_each_of_its_steps_while_another_collects(collector: Callable[[], Collector]) -> None:
    paused, other, decided, seen = collector(), collector(), Outcomes(), Counter[str]()
    for step in range(100):
        decide(decided, minute=0)  # whose rows are there already, and
        decide(decided, minute=1 + step)  # whose rows are new
        paused.start(f"pause {step}")
        assert paused.wait()
        if paused.code == 0:
            break
        seen[paused.steps[-1]] += 1
        for minute in (0, 1 + step):
            decide(decided, minute, times=1)
        other.start("run")
        other.wait(QUIET)  # until it has ended, or waits for what the paused one holds
        paused.tell("go on")
        assert paused.wait()
        assert other.wait()
        assert (paused.code, other.code) == (0, 0)
        collect()
        assert collected() == decided, f"paused before step {step}: {seen}"
    assert_every_step_was_met(seen)


def test_three_at_once(collector: Callable[[], Collector]) -> None:
    others, decided = [collector(), collector()], Outcomes()
    for _ in range(3):
        for _batch in range(8):  # all of one minute, so that they meet at the same rows
            decide(decided, times=1)
            get_engine().take_usage()
        collect_at_once(others)
    assert collected() == decided
    assert UsageBucket.objects.count() == 3 * len(LIMITS)


def test_what_is_known_of_partitions_comes_in_whole(collector: Callable[[], Collector]) -> None:
    """Killed before each step from there on, each time on a day of its own; what is over is forgotten then."""
    killed, seen = collector(), Counter[str]()

    def meet(hour: int) -> None:
        for caller in ("1", "1", "2", SAMPLED):
            charge = Charge(f"{hour}{caller}", LIMITS["many|pro"], usage="many|pro", partition=caller)
            get_engine().check([charge], now_us=hour * HOUR_US)

    meet(PAST_US // HOUR_US)
    killed.start("run")
    assert killed.wait()
    for step in range(killed.steps.index("hours"), 100):
        hour = PAST_US // HOUR_US + 24 * step  # all with the same steps: an hour of another day would take one more
        meet(hour)
        killed.start(f"kill {step}")
        assert killed.wait()
        if killed.code == 0:
            break
        seen[killed.steps[-1]] += 1
        collect()
        start = start_of(hour * 60)
        found = TopPartition.objects.filter(granularity="hour", start=start).order_by("partition")
        assert list(found.values_list("partition", "allowed")) == [("1", 2), ("2", 1), (SAMPLED, 1)]
        assert UsageSample.objects.get(minute=start).partition_hash == SAMPLED
        assert get_engine().partitions.hours() == set()  # type: ignore[attr-defined]
        assert get_engine().partitions.samples(10**9) == {}  # type: ignore[attr-defined]
    for once in ("top_partitions", "drop_top", "samples", "drop_samples"):
        assert seen[once] >= 1


def test_what_is_known_of_partitions_comes_in_once_from_three_at_once(collector: Callable[[], Collector]) -> None:
    others, decided = [collector(), collector()], Counter[str]()
    for hour in range(PAST_US // HOUR_US, PAST_US // HOUR_US + 3):  # of one day, which all of them write
        for number in range(120):
            caller = str(number % 40)
            charge = Charge(f"{hour}{caller}", LIMITS["many|pro"], usage="many|pro", partition=caller)
            get_engine().check([charge], now_us=hour * HOUR_US)
            decided[caller] += 1
        collect_at_once(others)
    for granularity in ("hour", "day"):
        rows = TopPartition.objects.filter(granularity=granularity).values_list("partition", "allowed")
        found = Counter[str]()
        for caller, allowed in rows:
            found[caller] += allowed
        assert found == decided


@pytest.mark.parametrize("after", ["closing", "collecting"])
def test_a_minute_that_is_closed_twice_comes_in_once(after: str, redis_client: redis.Redis) -> None:
    """Redis has lost what it did last, as after a crash or a failover: the minute is open again, counts and all."""
    decided = Outcomes()
    decide(decided)
    decide(decided, minute=1)
    kept = {key: redis_client.dump(key) for key in redis_client.scan_iter("{rl:0}:[ur]*e*")}
    if after == "closing":
        get_engine().take_usage()
    else:
        collect()
    for key, value in kept.items():
        redis_client.restore(key, 0, value, replace=True)
    decide(decided, minute=2)
    collect()
    assert collected() == decided
    decide(decided)  # late, in a hash of its own
    collect()
    assert collected() == decided
    assert get_engine().take_usage() == []
