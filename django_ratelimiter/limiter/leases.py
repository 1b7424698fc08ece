"""Leases of requests, which end with the request, however its response ends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from django.http import HttpRequest

from ..engine.coroutines import run_sync
from .io import IO, THREAD

#: Releases some leases.
Release = Callable[[IO], Coroutine[Any, Any, None]]

_LEASES: Final = "_ratelimit_leases"


def on_request_closed(request: HttpRequest, release: Release) -> None:
    """Call `release` once when the response to this request is sent or abandoned.

    Django closes the request with the final response, even if a middleware has replaced the response.
    """
    leases: list[Release] | None = request.__dict__.get(_LEASES)
    if leases is None:
        leases = request.__dict__[_LEASES] = []
        close = request.close

        def close_and_release() -> None:
            try:
                close()
            finally:
                release_leases(request)

        request.close = close_and_release  # type: ignore[method-assign]
    leases.append(release)


def release_leases(request: HttpRequest) -> None:
    """Release the leases of the request."""
    run_sync(release_all(THREAD, request))


async def release_all(io: IO, request: HttpRequest) -> None:
    """Release the leases of the request, even if our task is cancelled."""
    await io.finish(_release(io, request))


async def _release(io: IO, request: HttpRequest) -> None:
    leases: list[Release] = request.__dict__.get(_LEASES, [])
    while leases:
        await leases.pop()(io)
