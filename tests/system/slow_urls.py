"""Views that take as long as the tests want: as many milliseconds as the path says, or until /end/ is asked for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path

from tests.urls import say_hello

#: A stream sends a part so often, in seconds.
PART_SECONDS = 0.05
_ended = threading.Event()


def pauses(milliseconds: int) -> Iterator[None]:
    """One pause of PART_SECONDS after the other, until it is time to end."""
    for _ in range(int(milliseconds / 1_000 / PART_SECONDS)):
        if _ended.is_set():
            _ended.clear()  # not when it begins: the test may have asked for the end before
            return
        yield


def end(request: HttpRequest) -> HttpResponse:
    _ended.set()
    return HttpResponse("ended")


def slow(request: HttpRequest, milliseconds: int) -> HttpResponse:
    for _ in pauses(milliseconds):
        time.sleep(PART_SECONDS)
    return HttpResponse("slow")


async def slow_natively(request: HttpRequest, milliseconds: int) -> HttpResponse:
    for _ in pauses(milliseconds):
        await asyncio.sleep(PART_SECONDS)
    return HttpResponse("slow")


def stream(request: HttpRequest, milliseconds: int) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        for _ in pauses(milliseconds):
            yield b"part\n" * 2_000  # more than buffers hold would be noticed
            time.sleep(PART_SECONDS)

    return StreamingHttpResponse(parts())


async def stream_natively(request: HttpRequest, milliseconds: int) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        for _ in pauses(milliseconds):
            yield b"part\n" * 2_000
            await asyncio.sleep(PART_SECONDS)

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("hello/", say_hello),
    path("end/", end),
    path("items/<int:item>/", say_hello),
    path("slow/<int:milliseconds>/", slow),
    path("slow/natively/<int:milliseconds>/", slow_natively),
    path("stream/<int:milliseconds>/", stream),
    path("stream/natively/<int:milliseconds>/", stream_natively),
]
