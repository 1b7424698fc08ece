"""A process with the limiter that BENCH_LIMITER names, and no web server: for `benchmarks.instructions`.

Orders are lines of JSON on standard input, answers lines on standard output. BENCH_LOOP selects ASGI on an event loop
instead of WSGI. A request is the whole call of the application, from the environment that gunicorn or uvicorn makes to
the last part of the response.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import io
import json
import os
import pstats
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ..contest import address
from ..registry import reason
from . import settings

#: Calls the application with a path and the headers of a request, and returns the status.
Respond = Callable[[str, dict[str, str]], int]

#: As gunicorn makes it, for each request.
ENVIRON: Final = {
    "wsgi.errors": sys.stderr,
    "wsgi.version": (1, 0),
    "wsgi.multithread": False,
    "wsgi.multiprocess": False,
    "wsgi.run_once": False,
    "wsgi.input_terminated": True,
    "wsgi.url_scheme": "http",
    "SERVER_SOFTWARE": "gunicorn/bench",
    "REQUEST_METHOD": "GET",
    "QUERY_STRING": "",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "HTTP_HOST": "bench",
    "HTTP_USER_AGENT": "bench",
    "HTTP_ACCEPT": "*/*",
    "REMOTE_PORT": "40000",
    "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "80",
    "SCRIPT_NAME": "",
}


def wsgi() -> Respond:
    """Return a function that makes requests in this thread."""
    from .wsgi import application

    status = 0

    def start_response(line: str, _headers: list[tuple[str, str]]) -> None:
        nonlocal status
        status = int(line[:3])

    def respond(path: str, headers: dict[str, str]) -> int:
        environ = ENVIRON | {"wsgi.input": io.BytesIO(), "RAW_URI": path, "PATH_INFO": path}
        environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        response: Any = application(environ, start_response)
        b"".join(response)
        response.close()
        return status

    return respond


def asgi() -> Respond:
    """Return a function that makes requests on an event loop."""
    from .asgi import application

    runner = asyncio.Runner()

    async def on_loop(path: str, headers: dict[str, str]) -> int:
        sent = {"Host": "bench", "User-Agent": "bench", "Accept": "*/*"} | headers
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
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

        await application(scope, receive, send)
        return status

    return lambda path, headers: runner.run(on_loop(path, headers))


def obey(respond: Respond, path: str, callers: list[int], user: bool, status: int | None) -> str:
    """Make a request of each caller. Raises RuntimeError if a response has another status than this one.

    user: callers are signed in and have an API key. status: `None` = any. Returns calls of functions if BENCH_PROFILED.
    """
    from .rules import KEY

    profile = cProfile.Profile() if os.environ.get("BENCH_PROFILED") else None
    if profile:
        profile.enable()
    for caller in callers:
        signed_in = {"X-User": str(caller), "X-API-Key": KEY} if user else {}
        found = respond(path, {"X-Caller": address(caller)} | signed_in)
        if status not in (None, found):
            raise RuntimeError(f"{path} answered {found}.")
    if profile:
        profile.disable()
    return by_function(profile, len(callers)) if profile else ""


def by_function(profile: cProfile.Profile, requests: int) -> str:
    """Return functions with their calls in a request, those with most calls first."""
    stats: dict[tuple[str, int, str], tuple[int, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    lines = sorted(((calls[1] / requests, *where) for where, calls in stats.items()), reverse=True)
    return "\n".join(f"{calls:8.2f}  {name}  {file}:{line}" for calls, file, line, name in lines)


def main() -> None:
    # Under callgrind a request takes long: nothing that depends on time may happen, as when an hour begins.
    gc.disable()
    settings.RATELIMITER |= {"VERSION_CHECK_INTERVAL": 3_600, "DEADLINE_MS": 60_000}
    respond: Respond | None = None
    for line in sys.stdin:
        try:
            if respond is None:
                respond = asgi() if os.environ.get("BENCH_LOOP") else wsgi()
                if settings.LIMITER.startswith("ours"):
                    vars(import_module("django_ratelimiter.engine.redis.partition_notes"))["HOUR"] = 10**9
            answer = {"calls": obey(respond, **json.loads(line))}
        except Exception as error:  # any error; the others can still be measured
            answer = {"error": reason(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
