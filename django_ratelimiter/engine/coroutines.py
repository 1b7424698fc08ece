"""Run a coroutine that never suspends, so that threads and event loops share one way of doing a thing."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the coroutine's result. It must not suspend: what it awaits is done before it is awaited."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("A coroutine for threads has suspended.")
