"""A master of a cluster dies under traffic through the whole stack of middleware, and what was counted is collected."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db.models import Sum
from django.test.utils import override_settings

from django_ratelimiter import connection
from django_ratelimiter.models import UsageBucket
from django_ratelimiter.usage.collect import collect
from example_project.redis_server import HOST
from tests.clusters import Cluster, ServerWith, until

from .conftest import MakeRule
from .test_faults import BEYOND, DEADLINE, PATHS, WIDE, WORKERS, in_threads, on_an_event_loop


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(full_coverage=False) as cluster:
        yield cluster


@pytest.fixture
def rules(make_rule: MakeRule, cluster: Cluster) -> Iterator[None]:
    for server in cluster.servers:
        server.start()
    cluster.until_it_works()
    cluster.flush()
    nodes = [(HOST, server.port) for server in cluster.servers]
    factory = "django_ratelimiter.redis_cluster.ConnectionFactory"
    options = {"CONNECTION_FACTORY": factory, "STARTUP_NODES": nodes}
    cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": cluster.urls[0], "OPTIONS": options}
    limiter = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": DEADLINE * 1_000}
    with override_settings(CACHES={"default": cache, "ratelimit": cache}, RATELIMITER=limiter):
        for number, policy in enumerate(PATHS.values(), 1):
            make_rule(number, WIDE, failure_policy=policy, partition_by=["ip"])
        yield


def in_charge(cluster: Cluster) -> ServerWith | None:
    """The running master that counts these requests, which come from one address."""
    return next((server for server in cluster.masters if server.ask("KEYS", "*:items-1:*")), None)


def counted() -> dict[str, int]:
    """What the collector finds, by path."""
    engine: Any = connection.get_engine()
    engine.flush()
    engine.take_usage(now_us=int((time.time() + 120) * 1_000_000))
    collect()
    rows = (
        UsageBucket.objects.filter(granularity=UsageBucket.Granularity.MINUTE)
        .values("rule_slug")
        .annotate(calls=Sum("allowed") + Sum("denied"))
    )
    return {f"/items/{row['rule_slug'].removeprefix('items-')}/": row["calls"] for row in rows}


@pytest.mark.once
@pytest.mark.parametrize("driven", [in_threads, on_an_event_loop])
def test_a_master_dies(driven: Callable[[], Any], cluster: Cluster, rules: None) -> None:
    with driven() as traffic:
        traffic.wait_for_redis()
        dies = in_charge(cluster)
        assert dies
        begin = len(traffic.waits), len(traffic.late)
        dies.kill()
        traffic.wait_for(lambda answers: any(answer.status == 503 for answer in answers))
        until(lambda: in_charge(cluster), "another one has taken over")
        traffic.wait_for_redis()
    assert not traffic.errors
    for answer in traffic.answers:
        refused = PATHS[answer.path] == "closed" and not answer.by_redis
        assert answer.status == (503 if refused else 200), answer
    waits, late = sorted(traffic.waits[begin[0] :]), max(traffic.late[begin[1] :])
    assert waits[int(len(waits) * 0.99)] <= DEADLINE + BEYOND + late
    # A reply that was lost is of a decision that was counted, and then one more; and what the master had not passed on
    # to its replica is lost with it: the last few calls of each worker.
    found = counted()
    for path, asked in Counter(answer.path for answer in traffic.answers).items():
        assert abs(found[path] - asked) <= 4 * WORKERS
