"""Saving rules and collecting usage while one node of a cluster is away, and once it is back."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError
from django.db.models import Sum
from django.test.utils import override_settings
from django.urls import reverse

from django_ratelimiter import backend
from django_ratelimiter.engine import Charge, EngineUnavailable, Limit, StaleRules
from django_ratelimiter.engine.usage import shard_of
from django_ratelimiter.models import Rule, UsageBucket
from django_ratelimiter.rules import cache as rules_cache
from django_ratelimiter.rules.stored import published
from example_project.demo.admin_client import Form
from tests.clusters import Cluster, ServerWith, until
from tests.making import client_of, manage
from tests.system.test_saves import NOT_IN_FORCE

from .bare_cluster import alias
from .conftest import MakeRule

pytestmark = pytest.mark.once

LIMIT = Limit(1_000_000, 86_400, "sliding_window_counter")


@pytest.fixture
def cluster(bare_cluster: Cluster) -> Iterator[Cluster]:
    """In use, and empty."""
    bare_cluster.revive()
    bare_cluster.flush()
    cache = alias(bare_cluster)
    # A deadline that a loaded machine keeps: what is tested here are nodes that are away.
    limiter = {"CACHE_ALIAS": "ratelimit", "DEADLINE_MS": 2_000, "RETENTION": dict.fromkeys(("minute", "hour", "day"))}
    with override_settings(CACHES={"default": cache, "ratelimit": cache}, RATELIMITER=limiter):
        yield bare_cluster


def engine() -> Any:
    """The one that the limiter asks."""
    return backend.get_engine()


def charge_at(cluster: Cluster, server: ServerWith) -> Charge:
    """A charge that this node counts, which can be reached."""
    charges = (Charge(f"key{number}", LIMIT, usage=f"at-{cluster.servers.index(server)}|") for number in range(1_000))
    charge = next(each for each in charges if cluster.owner(f"{{rl:{engine().engine.shard_of(each)}}}") is server)
    until(lambda: is_reached(charge), "the node is reached")
    return charge


def is_reached(charge: Charge) -> bool:
    try:
        engine().peek([charge])
    except EngineUnavailable:
        return False
    return True


def collected() -> dict[str, int]:
    """What the buckets hold, by rule; the same at each granularity."""
    rows = UsageBucket.objects.order_by().values("granularity", "rule_slug").annotate(calls=Sum("allowed"))
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["granularity"], Counter())[row["rule_slug"]] = row["calls"]
    minutes = found.pop("minute", Counter())
    assert all(each == minutes for each in found.values())
    return dict(minutes)


def count_everywhere(cluster: Cluster) -> None:
    """Seven calls to each node, all within minutes that are closed."""
    for server in cluster.servers:
        charge = charge_at(cluster, server)
        for _ in range(7):
            engine().check([charge])
    engine().take_usage(now_us=int((time.time() + 120) * 1_000_000))


def test_what_the_other_nodes_hold_is_collected(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """And the rest once the node is back."""
    count_everywhere(cluster)
    cluster.servers[1].kill()
    with caplog.at_level(logging.WARNING, "django_ratelimiter"):
        manage("collect", stderr=StringIO())
    assert collected() == {"at-0": 7, "at-2": 7}
    assert any("shards cannot be collected now" in text for text in caplog.messages)
    cluster.revive()
    for _ in range(2):
        manage("collect", stderr=StringIO())
        assert collected() == {"at-0": 7, "at-1": 7, "at-2": 7}


@pytest.mark.parametrize("step", ["read_usage", "drop_usage"])
def test_a_node_that_dies_between_two_steps_costs_no_count_and_doubles_none(
    cluster: Cluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_everywhere(cluster)
    gone, original = cluster.servers[1], getattr(engine(), step)

    def die(batch: str) -> Any:
        if cluster.owner(f"{{rl:{shard_of(batch)}}}") is gone:
            gone.kill()
            monkeypatch.undo()
        return original(batch)

    monkeypatch.setattr(engine(), step, die)
    with pytest.raises(CommandError, match="Redis cannot be reached now"):
        manage("collect", stderr=StringIO())
    cluster.revive()
    for _ in range(2):
        manage("collect", stderr=StringIO())
        assert collected() == {"at-0": 7, "at-1": 7, "at-2": 7}


def test_rules_are_saved_and_in_force_but_for_the_shards_of_a_node_that_is_away(
    cluster: Cluster, make_rule: MakeRule
) -> None:
    """Once it is back, no decision is made there by the rules before, and collecting puts the new ones in force."""
    rule, gone = make_rule(1, 1_000), cluster.servers[1]
    before = rules_cache.current_rules().version
    assert versions(cluster) == {server: {text(before)} for server in cluster.servers}
    gone.kill()
    page = save(rule, quota=7)
    assert NOT_IN_FORCE in page
    assert rule.limits.get().quota == 7
    cluster.revive()
    now = rules_cache.current_rules().version
    held = versions(cluster)
    assert held.pop(gone) <= {text(before)}  # or none: the first connection to a server without the script drops it
    assert held == {server: {text(now)} for server in cluster.servers if server is not gone}
    assert all(is_stale(cluster, server, before) for server in cluster.servers)
    assert {published.held() for _ in range(64)} == {published.Held.OURS}, "each asks the next shard"
    manage("collect", stderr=StringIO())
    assert versions(cluster) == {server: {text(now)} for server in cluster.servers}
    assert NOT_IN_FORCE not in save(rule, quota=8)


def versions(cluster: Cluster) -> dict[ServerWith, set[str]]:
    """The versions that the shards of each node hold; one may be dropped while they are read."""
    return {
        server: {held.decode() for name in server.ask("KEYS", "*:version") if (held := server.ask("GET", name))}
        for server in cluster.servers
    }


def text(version: Any) -> str:
    """As a shard holds it."""
    return f"{version.epoch}:{version.number}"


def is_stale(cluster: Cluster, server: ServerWith, version: Any) -> bool:
    """Whether this node rejects to decide by these rules."""
    try:
        engine().check([charge_at(cluster, server)], version=version)
    except StaleRules:
        return True
    return False


def save(rule: Rule, quota: int) -> str:
    """Change the quota in the admin: the page that follows."""
    client = client_of(get_user_model().objects.create_superuser(f"editor-{quota}"))
    path = reverse("admin:django_ratelimiter_rule_change", args=[rule.pk])
    fields = Form(client.get(path).content.decode(), "rule_form").fields
    return client.post(path, {**fields, "limits-0-quota": quota, "_save": "Save"}, follow=True).content.decode()
