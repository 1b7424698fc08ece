"""The capacity of one server and one process: CPU time of a decision on either side, with eight clients.

The server's own CPU time does not depend on how many processors the clients share. The same is true of the
clients' CPU time.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis

from example_project.redis_server import START_SECONDS, RedisServer, ServerError

from ..contest import CALLERS_EACH, QUOTA
from ..registry import FLOOR_NAME, ON_CLUSTER, first_caller, reason
from ..setting import Setting, cpu_of, pin, progress
from ..workers import Workers

CLIENTS, CALLS = 8, 4_000
NAMES = (
    FLOOR_NAME,
    "ours: engine.check, 1 rule",
    "ours: engine.check, 3 rules",
    "ours: engine.check, 1 rule, denial memory",
    "ours: engine.check, 1 rule, approximate",
    "ours: limiter.check(request), 1 rule",
    "ours: limiter.check(request), 3 rules",
)


class ClusterNode(RedisServer):
    """One node that is a whole cluster: it has all slots."""

    def _command(self, folder: str) -> list[str]:
        return [*super()._command(folder), "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]

    def start(self) -> None:
        super().start()
        with redis.Redis.from_url(self.url) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE 0 16383")
            deadline = time.monotonic() + START_SECONDS
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                if time.monotonic() > deadline:
                    raise ServerError(f"The cluster was not ready in {START_SECONDS} s.")
                time.sleep(0.05)


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name and case: microseconds of CPU time on each side, and calls of Redis for each decision."""
    found, failed = on(setting, NAMES)
    with ClusterNode() as node:
        os.environ["BENCH_REDIS_URL"] = node.url
        progress("a node of a cluster")
        on_node, failed_on_node = on(Setting(node.url, node.pid, setting.brief), ON_CLUSTER)
    return {"clients": CLIENTS, "loads": found | on_node, "failed": failed | failed_on_node}


def on(setting: Setting, names: tuple[str, ...]) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, str]]:
    """Return the loads of these contestants on this server."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    pin((setting.server,), alone=False)
    with setting.client() as client, Workers([0] * CLIENTS, names) as workers:
        failed = dict(workers.failed)
        for name in workers.names:
            try:
                found[name] = loads(client, workers, name, setting.few_or(CALLS))
            except RuntimeError as error:
                failed[name] = reason(error)
    return found, failed


def loads(client: redis.Redis, workers: Workers, name: str, calls: int) -> dict[str, dict[str, float]]:
    """Return one contestant's loads by case."""
    first, each = first_caller(name) + 1, calls // (QUOTA // 2)
    admitted = [list(range(first + number * each, first + number * each + each)) for number in range(CLIENTS)]
    refused = [[first + CALLERS_EACH - 2]] * CLIENTS
    workers.all(name, QUOTA, refused)
    return {
        "allowed": load(client, workers, name, calls, admitted),
        "rejected": load(client, workers, name, calls, refused),
    }


def load(client: redis.Redis, workers: Workers, name: str, calls: int, callers: list[list[int]]) -> dict[str, float]:
    """Return the load of one contestant. admitted: the share of the requests that were allowed."""
    before = cpu_of(client)
    answers = workers.all(name, calls, callers)
    after = cpu_of(client)
    total = calls * len(callers)
    return {
        "server_us": (after.seconds - before.seconds) / total * 1e6,
        "script_us": (after.script_us - before.script_us) / total,
        "calls": (after.calls - before.calls) / total,
        "client_us": sum(answer["us"] for answer in answers) / len(answers),
        "admitted": sum(answer["admitted"] for answer in answers) / total,
    }
