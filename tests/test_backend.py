"""The engine of a process: on which caches it can be, and that it is replaced when its settings change."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_ratelimiter.backend import get_async_engine, get_engine
from django_ratelimiter.engine import Charge, Limit
from django_ratelimiter.engine.breaker import MAX_FAILURES, open_breakers
from django_ratelimiter.exceptions import EngineUnavailable

from .admin.overview.test_overview import nowhere


def test_the_breakers_of_a_former_engine_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.engine.breaker._breakers", WeakValueDictionary())
    with override_settings(CACHES=nowhere()):
        engine, twin = get_engine(), get_async_engine()

        async def fail() -> None:
            for _ in range(MAX_FAILURES):
                with suppress(EngineUnavailable):
                    engine.check(())
                with suppress(EngineUnavailable):
                    await twin.check(())

        asyncio.run(fail())
        assert open_breakers() == 1, "threads and event loops share it"
    assert get_engine() is not engine
    assert open_breakers() == 0  # although somebody still has them


def djangos(location: Any, **options: Any) -> Any:
    """Name Django's own cache on Redis."""
    backend = "django.core.cache.backends.redis.RedisCache"
    entry = {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}
    return override_settings(
        CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}, "own": entry},
        RATELIMITER={"CACHE_ALIAS": "own", "NAMESPACE": "djangos"},
    )


def test_djangos_own_redis_cache_will_do(redis_url: str) -> None:
    charge = Charge("key", Limit(3, 60))

    async def check() -> bool:
        [verdict] = await get_async_engine().check([charge])
        await get_async_engine().aclose()
        return bool(verdict.allowed)

    with djangos(redis_url, socket_timeout=0.5, socket_connect_timeout=0.5):
        allowed = [get_engine().check([charge])[0].allowed for _ in range(2)]
        allowed += [asyncio.run(check()), asyncio.run(check())]
        assert allowed == [True, True, True, False]
        get_engine().reset([charge])
        assert get_engine().check([charge])[0].remaining == 2


def test_the_first_of_several_addresses_is_written_to(redis_url: str) -> None:
    with djangos([redis_url, "redis://127.0.0.1:1/0"]):
        for number in range(10):
            assert get_engine().check([Charge(f"key:{number}", Limit(3, 60))])[0].allowed


@pytest.mark.parametrize("backend", ["django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"])
def test_an_address_that_is_none_is_named(backend: str) -> None:
    entry = {"BACKEND": backend, "LOCATION": "localhost:6379"}
    with (
        override_settings(CACHES={"own": entry}, RATELIMITER={"CACHE_ALIAS": "own"}),
        pytest.raises(ImproperlyConfigured, match=r"CACHES\['own'\]: Redis URL must specify"),
    ):
        get_engine()


def test_an_option_that_redis_py_does_not_know_is_an_outage(redis_url: str) -> None:
    """As one is taken over from django-redis, whose options have other names."""
    with djangos(redis_url, SOCKET_TIMEOUT=0.5), pytest.raises(EngineUnavailable, match="SOCKET_TIMEOUT"):
        get_engine().check([Charge("key", Limit(3, 60))])
