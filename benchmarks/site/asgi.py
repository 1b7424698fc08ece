"""The ASGI application: `uvicorn benchmarks.site.asgi:application`. X-Caller is used as the caller's address."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.site.settings")
os.environ["BENCH_LOOP"] = "1"

from django.core.asgi import get_asgi_application

_site = get_asgi_application()


async def application(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Call the site as a caller with that address."""
    if scope["type"] == "http":
        caller = dict(scope["headers"]).get(b"x-caller", b"127.0.0.1").decode()
        await _site(scope | {"client": (caller, 1)}, receive, send)
