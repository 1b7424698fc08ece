"""A master dies under traffic: on a cluster and under Sentinel, decisions go on as soon as another has taken over."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter.engine.redis import RedisEngine
from tests.clusters import Cluster, ServerWith, Watched, until
from tests.engine.enduring import QUOTA
from tests.engine.hits import DAY, client_of

PROCESSES = 4
DEADLINE = 0.1


@contextmanager
def traffic(url: str) -> Iterator[dict[str, Any]]:
    """Processes that go on deciding meanwhile; what came of it is there afterwards."""
    command = [sys.executable, "-W", "error", "-m", "tests.engine.enduring", url, str(PROCESSES), str(DEADLINE)]
    found: dict[str, Any] = {}
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[4], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin
        assert program.stdout
        assert program.stdout.readline() == "begun\n"
        yield found
        found.update(json.loads(program.communicate("stop\n", timeout=300)[0]))
    assert program.returncode == 0


def counted(url: str) -> dict[str, int]:
    """What was counted as usage, by label."""
    totals: dict[str, int] = Counter()
    with client_of(url) as client:
        engine = RedisEngine(client, "enduring")
        for batch in engine.take_usage(now_us=int((time.time() + DAY) * 1_000_000)):
            for count in engine.read_usage(batch):
                totals[count.label] += count.allowed + count.rejected
    return totals


def check(url: str, kill: Callable[[], object], works: Callable[[], object]) -> dict[str, Any]:
    """Kill a server under traffic, wait until all is well again, and see that nothing else was noticed."""
    with traffic(url) as found:
        time.sleep(1)
        kill()
        works()
        time.sleep(1)  # what was out of reach is asked again, and found
    print(found)
    assert found["others"] == []
    assert found["unavailable"] > 0
    assert found["at_once"] > 0, "after some failures nobody waits any more"
    assert found["admitted"] == QUOTA
    totals = counted(url)
    assert found["decided"] <= totals["one|"] <= found["decided"] + found["lost"]
    for part in range(3):
        several = totals[f"several{part}|"]
        # What was spent in one shard could not always be taken back there before that one was lost as well.
        assert found["several"] <= several <= found["several"] + found["unavailable_several"]
    return found


def die(master: ServerWith, replica: ServerWith) -> None:
    """Die with nothing that the replica has not heard: how much that would be is the machine's doing."""
    master.ask("CLIENT", "PAUSE", 60_000, "WRITE")
    until(lambda: master.ask("ROLE")[1] == replica.ask("ROLE")[4], "the replica has heard all")
    master.kill()


@pytest.mark.parametrize("full_coverage", [True, False])
def test_a_master_of_a_cluster_dies(full_coverage: bool) -> None:
    with Cluster(full_coverage=full_coverage) as cluster:
        dies, asked = cluster.owner("{enduring:5}"), cluster.servers[1]

        def works() -> None:
            until(lambda: cluster.owner("{enduring:5}", asked) is not dies, "another one has taken over")
            cluster.until_it_works()

        replica = cluster.servers[cluster.servers.index(dies) + 3]
        check(f"cluster+{asked.url}", lambda: die(dies, replica), works)


def test_a_master_under_sentinel_dies() -> None:
    with Watched() as watched:
        dies = watched.master

        def other() -> ServerWith | None:
            return next((server for server in watched.masters if server is not dies), None)

        url = f"sentinel+redis://{watched.sentinels[0].url.partition('//')[2].partition('/')[0]}/{watched.name}"
        (replica,) = (server for server in watched.servers if server is not dies)
        check(url, lambda: die(dies, replica), lambda: until(other, "another one has taken over"))
