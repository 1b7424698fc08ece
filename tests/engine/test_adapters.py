"""An event loop uses an engine's twin, the engine itself, or threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from redis.connection import Connection, ConnectionPool, SSLConnection

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.coroutines import as_async
from django_ratelimiter.engine.redis import AsyncRedisEngine, RedisEngine

CHARGE = Charge("key", Limit(3, 86_400, "token_bucket"))


class Slow:
    """An engine that must not be called on an event loop; `apeek` it has as a coroutine."""

    def check(self, charges: Any, **options: Any) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return f"checked {charges} with {options}"

    def peek(self, charges: Any) -> str:
        raise AssertionError("there is a coroutine")

    async def apeek(self, charges: Any) -> str:
        return f"looked at {charges} in {threading.current_thread() is threading.main_thread()}"


class OwnConnection(Connection):
    """Of a project's own."""


def test_redis_has_a_twin_with_the_same_counters_and_options(redis_client: redis.Redis) -> None:
    client = redis.Redis(
        connection_pool=ConnectionPool(
            **{
                **redis_client.connection_pool.connection_kwargs,
                "socket_timeout": 7,
                "client_name": "rl",
                "retry": None,
            }
        )
    )
    engine = RedisEngine(client, namespace="other")
    twin = as_async(engine)
    assert isinstance(twin, AsyncRedisEngine)
    options = twin._transport._client_pool.connection_kwargs
    assert (options["socket_timeout"], options["client_name"]) == (7, "rl")

    async def spend() -> int:
        return int((await twin.check([CHARGE]))[0].remaining)

    assert asyncio.run(spend()) == 2
    assert engine.peek([CHARGE])[0].remaining == 2
    client.close()


def test_the_twin_keeps_the_credentials_and_the_encryption() -> None:
    url = "rediss://ann:secret@example.org:7000/3?ssl_ca_certs=/ca.pem"
    twin = as_async(RedisEngine(redis.Redis.from_url(url)))
    pool = twin._transport._client_pool
    assert pool.connection_class.__name__ == "SSLConnection"
    assert {name: pool.connection_kwargs[name] for name in ("host", "port", "db", "username", "password")} == {
        "host": "example.org", "port": 7000, "db": 3, "username": "ann", "password": "secret",
    }  # fmt: skip
    assert pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
    assert pool.connection_kwargs.get("ssl_cert_reqs", "required") == "required"


@pytest.mark.parametrize(
    "pool",
    [
        ConnectionPool(connection_class=OwnConnection),
        ConnectionPool(connection_class=SSLConnection, ssl_validate_ocsp=True),
    ],
)
def test_a_client_that_has_no_counterpart_is_used_in_threads(pool: ConnectionPool) -> None:
    engine = as_async(RedisEngine(redis.Redis(connection_pool=pool)))
    assert not isinstance(engine, AsyncRedisEngine)
    assert callable(engine.check)


def test_memory_is_used_on_the_spot() -> None:
    engine = MemoryEngine()

    async def spend() -> int:
        return int((await as_async(engine).check([CHARGE]))[0].remaining)

    assert asyncio.run(spend()) == 2
    assert engine.peek([CHARGE])[0].remaining == 2


def test_any_other_engine_is_used_in_threads_or_by_its_coroutines() -> None:
    async def use() -> list[str]:
        engine = as_async(Slow())  # type: ignore[arg-type]
        return [await engine.check("these", version=7), await engine.peek("those")]

    assert asyncio.run(use()) == ["checked these with {'version': 7}", "looked at those in True"]
