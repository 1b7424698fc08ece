"""Workers that are killed in the middle of requests: no count is lower than what they did, nor higher by much."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from django.db.models import Sum

from django_ratelimiter.backend import get_engine
from django_ratelimiter.models import CallerUsage, UsageBucket
from django_ratelimiter.usage.collector.collect import collect
from tests.making import make_rule
from tests.system.working import ESTIMATE, MOST

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

KILLS = 8
OUTCOMES = ("allowed", "rejected", "rejected_by_other")


def killed_after(requests: int, seed: int) -> list[tuple[str, dict[str, tuple[str, int]]]]:
    """What a worker did that was killed once it had done so many requests."""
    command = [sys.executable, "-m", "tests.system.working", str(seed)]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout
        lines = [worker.stdout.readline() for _ in range(requests)]
        worker.kill()
        lines += worker.stdout.readlines()
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_killed_workers_leave_no_count_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = {"partition_by": ["ip"], "exact_usage": True}
    make_rule("site", quota=10**6, cost=2, **exact)
    make_rule("tokens", quota=10**6, scope="tokens", **exact)
    make_rule("last", quota=7, scope="last", **exact)
    chance, done, callers = random.Random(7), Counter[tuple[str, str]](), Counter[tuple[str, str, str]]()
    for seed in range(KILLS):
        for address, became in killed_after(chance.randint(10, 60), seed):
            for rule, (outcome, units) in became.items():
                done.update({(rule, outcome): 1, (rule, "units"): units})
                callers.update({(rule, address, outcome): 1, (rule, address, "units"): units})
    take = get_engine().take_usage
    monkeypatch.setattr(get_engine(), "take_usage", lambda: take(now_us=5 * 10**15), raising=False)
    collect()
    sums = UsageBucket.objects.filter(granularity="day").values_list("rule_slug")
    rows = {rule: counts for rule, *counts in sums.annotate(*map(Sum, (*OUTCOMES, "units")))}
    for rule, (*counts, units) in rows.items():
        beyond = [count - done[rule, outcome] for count, outcome in zip(counts, OUTCOMES, strict=True)]
        assert min(beyond) >= 0
        assert sum(beyond) <= KILLS
        assert 0 <= units - done[rule, "units"] <= KILLS * (MOST + ESTIMATE)
        of_callers = CallerUsage.objects.filter(rule_slug=rule)
        assert [*of_callers.aggregate(*map(Sum, (*OUTCOMES, "units"))).values()] == [*counts, units]
    for row in CallerUsage.objects.values("rule_slug", "value").annotate(*map(Sum, (*OUTCOMES, "units"))).order_by():
        for name in (*OUTCOMES, "units"):
            assert row[f"{name}__sum"] >= callers[row["rule_slug"], row["value"], name]
    assert rows.keys() == {"site", "tokens", "last"}
    assert done["tokens", "units"] > done["tokens", "allowed"] > 0
    assert done["site", "rejected_by_other"] == done["last", "rejected"] > 0
