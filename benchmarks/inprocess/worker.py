"""One process with one limiter, for `added`: orders as lines of JSON on standard input, answers on standard output.

BENCH_LIMITER and BENCH_LOOP select the limiter and WSGI, or ASGI on an event loop. A request is the
whole call of the application, from the environment that a web server makes to the last part of the response.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from ..contest import address
from ..registry import reason

#: Memory that is read between two requests, one byte per cache line: twice the size of a processor's own cache.
BUFFER: Final = bytearray(int(os.environ.get("BENCH_BUFFER_MB", "4")) << 20)
LINE: Final = 64

#: Makes the request of a path and headers, calls its last argument before it responds, returns nanoseconds and status.
Respond = Callable[[str, dict[str, str], Callable[[], None]], tuple[int, int]]


def chill() -> None:
    """Replace the contents of the CPU caches, as a client and a web server do between two requests."""
    BUFFER[::LINE]


def stay_warm() -> None:
    """Do nothing."""


def wsgi() -> Respond:
    """Return a function that makes requests in this thread."""
    from ..site.wsgi import application

    status = 0

    def start_response(line: str, _headers: list[tuple[str, str]]) -> None:
        nonlocal status
        status = int(line[:3])

    def respond(path: str, headers: dict[str, str], pause: Callable[[], None]) -> tuple[int, int]:
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "bench",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_HOST": "bench",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),
        } | {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        pause()
        began = perf_counter_ns()
        response: Any = application(environ, start_response)
        b"".join(response)
        response.close()
        return perf_counter_ns() - began, status

    return respond


def asgi() -> Respond:
    """Return a function that makes requests on an event loop."""
    from ..site.asgi import application

    runner = asyncio.Runner()

    async def on_loop(path: str, headers: dict[str, str], pause: Callable[[], None]) -> tuple[int, int]:
        named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"bench"), *named],
            "server": ("bench", 80),
        }
        body, status = [{"type": "http.request"}], 0

        async def receive() -> dict[str, Any]:
            if not body:
                await asyncio.Event().wait()  # the client stays connected
            return body.pop()

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            status = message.get("status", status)

        pause()
        began = perf_counter_ns()
        await application(scope, receive, send)
        return perf_counter_ns() - began, status

    return lambda path, headers, pause: runner.run(on_loop(path, headers, pause))


def obey(respond: Respond, order: dict[str, Any]) -> list[float]:
    """Make a request of each caller, and return the microseconds of those with the right response.

    path, callers. cold: whether the CPU caches are replaced before each. user: whether they are signed in and have an
    API key. status: of responses; `None` = any. Raises RuntimeError if most have another: a window may end meanwhile,
    so that a few are allowed.
    """
    from ..site.rules import KEY

    found, pause = [], chill if order["cold"] else stay_warm
    for caller in order["callers"]:
        signed_in = {"X-User": str(caller), "X-API-Key": KEY} if order["user"] else {}
        took, status = respond(order["path"], {"X-Caller": address(caller)} | signed_in, pause)
        if order["status"] in (None, status):
            found.append(took / 1_000)
    if len(found) * 2 < len(order["callers"]):
        raise RuntimeError(f"{order['path']} answered {status}.")
    return found


def main() -> None:
    respond: Respond | None = None
    for line in sys.stdin:
        try:
            respond = respond or (asgi() if os.environ.get("BENCH_LOOP") else wsgi())
            answer: dict[str, Any] = {"us": obey(respond, json.loads(line))}
        except Exception as error:  # any error; the others can still be measured
            answer = {"error": reason(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
