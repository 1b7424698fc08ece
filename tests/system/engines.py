"""An engine that the tests can make fail in one process and in no other."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from django_redis import get_redis_connection

from django_ratelimiter.engine import EngineUnavailable, Version
from django_ratelimiter.engine.redis import RedisEngine

FOLDER = "SYSTEM_FAULTS"


def failures_of(folder: Path, process: int) -> Path:
    """The file that holds how many calls of `publish` will fail in this process; none fails without it."""
    return folder / f"publish-fails-in-{process}"


class UnreliableEngine(RedisEngine):
    """The engine on Redis, whose `publish` fails as often as the file of this process says."""

    def publish(self, version: int | Version) -> None:
        file = failures_of(Path(os.environ[FOLDER]), os.getpid())
        with suppress(FileNotFoundError):
            left = int(file.read_text())
            if left > 0:
                file.write_text(str(left - 1))
                raise EngineUnavailable("made to fail")
        super().publish(version)


def unreliable() -> RedisEngine:
    """For RATELIMITER["ENGINE"]."""
    return UnreliableEngine(get_redis_connection("ratelimit"))
