"""A Celery worker whose tasks take turns: none sleeps in it, each runs once, and each is charged once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from celery import Celery

from django_ratelimiter.backend import get_engine
from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.rules import cache
from example_project.watched_process import WatchedProcess

from .site import PROJECT, START_SECONDS

#: So long that a quick task begins within it on a busy machine, too, and many do between two that take turns.
INTERVAL = 1.5
TASKS = 4
#: Tasks that take turns among themselves, and the seconds between two that do not.
TURNS = ("pay", "transfer")
REST_SECONDS = 0.05
#: What a message may be late or early: the timer of the worker, and this machine.
TOLERANCE = 0.15
BEGAN = "tasks-began"


class Beginning(NamedTuple):
    name: str
    number: int
    at: float


@pytest.fixture
def sender(redis_url: str, tmp_path: Path) -> Iterator[Celery]:
    """What sends tasks to a running worker that does one at a time, in the process that receives them."""
    command = ["env", "DJANGO_SETTINGS_MODULE=tests.system.settings", f"PYTHONPATH={PROJECT}", sys.executable]
    command += ["-m", "celery", "--app", "tests.system.celery_app", "--quiet"]
    command += ["worker", "--pool", "solo", "--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
    worker = WatchedProcess(command, tmp_path)
    app = Celery("sender", broker=redis_url, set_as_current=False)
    yield app
    app.close()
    print(worker.output)
    worker.stop()


def begun(client: redis.Redis, name: str) -> list[Beginning]:
    notes = [note.decode().split() for note in client.lrange(BEGAN, 0, -1)]
    return [Beginning(task, int(number), float(at)) for task, number, at in notes if task == name]


def wait_for(client: redis.Redis, name: str, count: int) -> list[Beginning]:
    deadline = time.monotonic() + START_SECONDS
    while len(begun(client, name)) < count:
        assert time.monotonic() < deadline, f"{begun(client, name)} began"
        time.sleep(0.02)
    return begun(client, name)


def test_tasks_begin_one_after_the_other_and_the_worker_is_free_meanwhile(
    sender: Celery, redis_client: redis.Redis
) -> None:
    """In a queue that holds all, and in one that holds a part: the others ask again later."""
    with cache.editing():
        for scope, burst in (("stripe", TASKS), ("bank", 2)):
            rule = Rule.objects.create(slug=scope, name=scope, scope=scope, mode="enforce")
            RuleLimit.objects.create(rule=rule, algorithm="leaky_bucket", quota=1, window_seconds=INTERVAL, burst=burst)
    sender.send_task("quick", [0])
    wait_for(redis_client, "quick", 1)

    for number in range(TASKS):
        for name in TURNS:
            sender.send_task(name, [number])
    sent = {}
    while any(len(begun(redis_client, name)) < TASKS for name in TURNS):
        number = len(sent) + 1
        sent[number] = time.time()
        sender.send_task("quick", [number])
        wait_for(redis_client, "quick", number + 1)
        time.sleep(REST_SECONDS)
    time.sleep(2 * INTERVAL)  # for what should not come

    latest = max(task.at - sent[task.number] for task in begun(redis_client, "quick") if task.number)
    assert latest < INTERVAL
    assert len(sent) > 3 * TASKS
    for name in TURNS:
        taken = begun(redis_client, name)
        assert sorted(task.number for task in taken) == list(range(TASKS))
        gaps = [later.at - sooner.at for sooner, later in pairwise(taken)]
        assert min(gaps) >= INTERVAL - TOLERANCE - latest  # on a busy machine one begins late, and the next does not
        assert taken[-1].at - taken[0].at >= (TASKS - 1) * INTERVAL - TOLERANCE - latest
    engine = get_engine()
    counts = [count for batch in engine.take_usage(now_us=2**52) for count in engine.read_usage(batch)]
    assert {count.label for count in counts} == {"stripe|", "bank|"}
    for label, rejected in (("stripe|", False), ("bank|", True)):
        assert sum(count.allowed for count in counts if count.label == label) == TASKS
        assert (sum(count.rejected for count in counts if count.label == label) > 0) is rejected
