"""The least that a limiter with redis-py does: the floor of `benchmarks.floor` before each view."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio
from django.http import HttpRequest, HttpResponse

from ..contest import HOUR
from ..floor import FLOOR
from .settings import REDIS_URL


def limited(view: Callable[[HttpRequest], HttpResponse], quota: int) -> Callable[[HttpRequest], HttpResponse]:
    """Return the view after one EVALSHA."""
    client = redis.Redis.from_url(REDIS_URL)
    sha = client.script_load(FLOOR)

    def wrapped(request: HttpRequest) -> HttpResponse:
        if not client.evalsha(sha, 1, f"floor:{quota}:{request.META['REMOTE_ADDR']}", quota, quota / HOUR, 1)[0]:
            return HttpResponse(status=429)
        return view(request)

    return wrapped


def async_limited(
    view: Callable[[HttpRequest], Awaitable[HttpResponse]], quota: int
) -> Callable[[HttpRequest], Awaitable[HttpResponse]]:
    """Return the view after one EVALSHA, on an event loop."""
    client = redis.asyncio.Redis.from_url(REDIS_URL)
    with redis.Redis.from_url(REDIS_URL) as loading:
        sha = loading.script_load(FLOOR)

    async def wrapped(request: HttpRequest) -> HttpResponse:
        key = f"floor:{quota}:{request.META['REMOTE_ADDR']}"
        reply: Any = await client.evalsha(sha, 1, key, quota, quota / HOUR, 1)
        return await view(request) if reply[0] else HttpResponse(status=429)

    return wrapped
