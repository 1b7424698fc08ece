"""One code for threads and event loops: coroutines that never suspend, work that must finish after a cancellation, and
engines for threads that event loops call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result. It must not suspend: everything that it awaits must be done already."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("A coroutine for threads has suspended.")


async def shielded(work: Awaitable[object]) -> None:
    """Await this work. It runs to its end even if our task is cancelled."""
    task = asyncio.ensure_future(work)
    _unfinished.add(task)  # the event loop keeps only a weak reference
    task.add_done_callback(_unfinished.discard)
    await asyncio.shield(task)


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of this work. On an event loop, it runs to its end even if our task is cancelled."""
    try:
        task = asyncio.get_running_loop().create_task(work)
    except RuntimeError:  # for threads
        return await work
    task.add_done_callback(lambda task: task.cancelled() or task.exception())  # if ours is, nobody waits for it
    await shielded(task)
    return task.result()


_unfinished: Final[set[asyncio.Future[object]]] = set()


def as_async(engine: Any) -> Any:
    """Return an engine whose methods have the same names and are coroutines.

    An engine may return its own engine for event loops from `to_async()`; `None` = it has none. Else it is called in
    threads.
    """
    own: Callable[[], Any] | None = getattr(engine, "to_async", None)
    return (own and own()) or ThreadAdapter(engine)


class ImmediateAdapter:
    """For an engine that never blocks."""

    def __init__(self, engine: Any) -> None:
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
