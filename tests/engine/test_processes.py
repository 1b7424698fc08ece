"""Eight processes on one key admit exactly its quota, by the server's own clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.hits import HITS, PROCESSES, QUOTA
from tests.engine.trio import HOUR


@pytest.mark.parametrize("algorithm", Algorithm)
def test_exactly_the_quota_is_admitted(redis_client: redis.Redis, redis_url: str, algorithm: Algorithm) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.engine.hits", redis_url, algorithm]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, timeout=120)
    assert int(done.stdout) == QUOTA
    engine = RedisEngine(redis_client, "hits")
    counts = [count for batch in engine.take_usage(now_us=2 * HOUR) for count in engine.read_usage(batch)]
    assert sum(count.allowed for count in counts) == QUOTA
    assert sum(count.denied for count in counts) == PROCESSES * HITS - QUOTA
