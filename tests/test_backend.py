"""The engine of a process is replaced when its settings change."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary

import pytest
from django.test import override_settings

from django_ratelimiter.backend import get_async_engine, get_engine
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
        assert open_breakers() == 2
    assert get_engine() is not engine
    assert open_breakers() == 0  # although somebody still has them
