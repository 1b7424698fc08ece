"""The engines that the unit tests ask.

By themselves (`pytest tests/unit`, which reads `pytest.ini` here) they ask MemoryEngine: no server is started, and
neither Django nor redis is imported. As a part of a larger run they ask RedisEngine as well.

UNIT_TESTS=redis: only RedisEngine is asked. `make test` has asked the rest in a run by themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_ratelimiter.engine import Engine, MemoryEngine
from tests import profiles
from tests.engine.trio import Trio

WITH_REDIS = "tests.servers" in sys.modules
#: What a run without servers must not import.
UNWANTED = {"django", "django_redis", "redis", "rest_framework", "celery", "pytest_django"}

#: Whether what needs no server was asked before.
ONLY_REDIS = os.environ.get("UNIT_TESTS") == "redis"

if not WITH_REDIS:
    profiles.load("brief")
    os.environ.setdefault("TWIN_STEPS", "500")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the unit tests that need no server, where UNIT_TESTS says so."""
    if ONLY_REDIS:
        spared = {item for item in items if Path(__file__).parent in item.path.parents and not asks_redis(item)}
        items[:] = [item for item in items if item not in spared]
        config.hook.pytest_deselected(items=[*spared])


def asks_redis(item: pytest.Item) -> bool:
    """Whether a test gets an engine on the server."""
    parameters = getattr(item, "callspec", None)
    chosen = parameters.params.values() if parameters else ()
    return "redis_engine" in getattr(item, "fixturenames", ()) and "memory" not in chosen


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run without servers that has imported Django or redis."""
    if not WITH_REDIS and (found := UNWANTED & {name.partition(".")[0] for name in sys.modules}):
        print(f"\nThe unit tests have imported {', '.join(sorted(found))}.")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def redis_engine(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Engine] | None]:
    """Makes engines on the server of the suite; `None` where none runs."""
    if not WITH_REDIS:
        yield None
        return
    import redis

    from django_ratelimiter.engine.redis import RedisEngine

    with redis.Redis.from_url(request.getfixturevalue("redis_url")) as client:
        yield lambda namespace: RedisEngine(client, namespace=namespace)


@pytest.fixture(scope="session")
def trio(redis_engine: Callable[[str], Engine] | None) -> Callable[[], Trio]:
    """Makes trios with keys of their own, for one example each."""
    engine = redis_engine and redis_engine("trio")
    return lambda: Trio(engine)


@pytest.fixture(scope="session", params=["memory", "redis"] if WITH_REDIS else ["memory"])
def asked(request: pytest.FixtureRequest, redis_engine: Callable[[str], Engine]) -> Engine:
    """Each engine in turn, the same for all examples; they take keys of their own from `asking.fresh`."""
    return MemoryEngine() if request.param == "memory" else redis_engine("asked")


@pytest.fixture(params=["memory", "redis"] if WITH_REDIS else ["memory"])
def engine(request: pytest.FixtureRequest, redis_engine: Callable[[str], Engine]) -> Engine:
    """Each engine in turn, with no key in it."""
    return MemoryEngine() if request.param == "memory" else redis_engine("test")
