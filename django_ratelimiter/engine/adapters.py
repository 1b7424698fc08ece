"""Adapters of engines for threads to event loops: called directly if they never block, else in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .base import Engine
from .memory import MemoryEngine


def as_async(engine: Engine) -> Any:
    """Return an engine whose methods have the same names and are coroutines.

    An engine may return its own engine for event loops from `to_async()`; `None` = it has none.
    """
    own: Callable[[], Any] | None = getattr(engine, "to_async", None)
    return (own and own()) or (ImmediateAdapter(engine) if isinstance(engine, MemoryEngine) else ThreadAdapter(engine))


class ImmediateAdapter:
    """For an engine that never blocks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            return getattr(self._engine, name)(*args, **options)

        return call


class ThreadAdapter(ImmediateAdapter):
    """For an engine that may block: each call runs in a thread.

    If the engine has a coroutine of the same name with the prefix "a", that is awaited instead.
    """

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        own: Callable[..., Coroutine[Any, Any, Any]] | None = getattr(self._engine, f"a{name}", None)
        if own is not None:
            return own

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self._engine, name), *args, **options)

        return call
