"""Engines made for threads, to be awaited on an event loop: directly where they never wait, else in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .base import Engine
from .memory import MemoryEngine


def as_async(engine: Engine) -> Any:
    """The engine with methods of the same names that are to be awaited.

    One that knows an engine of its own for event loops (`to_async()`) names it, or `None` if it has none.
    """
    own: Callable[[], Any] | None = getattr(engine, "to_async", None)
    return (own and own()) or (ImmediateAdapter(engine) if isinstance(engine, MemoryEngine) else ThreadAdapter(engine))


class ImmediateAdapter:
    """An engine that never waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            return getattr(self._engine, name)(*args, **options)

        return call


class ThreadAdapter(ImmediateAdapter):
    """An engine that waits for something, so that each of its calls has a thread to itself.

    What it has as a coroutine, under the same name with an "a" before it, is awaited instead.
    """

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        own: Callable[..., Coroutine[Any, Any, Any]] | None = getattr(self._engine, f"a{name}", None)
        if own is not None:
            return own

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self._engine, name), *args, **options)

        return call
