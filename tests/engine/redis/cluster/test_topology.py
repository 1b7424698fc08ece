"""Who serves which shard is asked in a thread: two requests that want it at once start one each, and none twice."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimiter.engine.redis.cluster import topology
from django_ratelimiter.engine.redis.cluster.topology import Topology
from django_ratelimiter.engine.redis.connections.clients import ClientFactory


class NotStarted:
    """A thread that runs nothing, and is never alive. started: all that were, in turn."""

    started: list[NotStarted]

    def __init__(self, **_given: Any) -> None:
        """Take what a thread takes."""

    def is_alive(self) -> bool:
        return False

    def start(self) -> None:
        self.started.append(self)


class Interrupted(Topology):
    """Has another request come in between a thread's being made and its being started."""

    is_alone = True

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_thread" and value is not None and self.is_alone:
            self.is_alone = False
            self.refresh_soon()


def test_no_thread_is_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "Thread", NotStarted)
    monkeypatch.setattr(NotStarted, "started", [], raising=False)
    Interrupted(ClientFactory((("127.0.0.1", 1),), {}), "rl", 4).refresh_soon()
    assert len(NotStarted.started) == len(set(NotStarted.started)) == 2
