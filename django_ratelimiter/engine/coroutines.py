"""Coroutines that never suspend, shared by threads and event loops; and work that must finish after a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
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
