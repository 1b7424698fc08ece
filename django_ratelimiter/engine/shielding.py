"""Work that comes to its end, whatever becomes of the task that awaits it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final


async def shielded(work: Coroutine[Any, Any, object]) -> None:
    """Await it, and let it go on to its end even if our task is cancelled."""
    task = asyncio.ensure_future(work)
    _unfinished.add(task)  # the event loop itself would not keep it alive
    task.add_done_callback(_unfinished.discard)
    await asyncio.shield(task)


_unfinished: Final[set[asyncio.Future[object]]] = set()
