"""The same site, which has decided requests before gunicorn forks its workers from it (`--preload`)."""

from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from wsgiref.util import setup_testing_defaults

from .wsgi import application

__all__ = ["application"]

#: As many connections to Redis as this many threads use at once are left to the workers.
THREADS = 8
REQUESTS = 80


def _answer(number: int) -> str:
    environ: dict[str, Any] = {"PATH_INFO": "/items/1/", "REMOTE_ADDR": f"192.0.2.{number}"}
    setup_testing_defaults(environ)
    statuses: list[str] = []
    response = application(environ, lambda status, headers: statuses.append(status))
    response.close()
    return statuses[0]


with ThreadPoolExecutor(THREADS) as threads:
    answered = set(threads.map(_answer, range(REQUESTS)))
if answered != {f"{HTTPStatus.OK:d} {HTTPStatus.OK.phrase}"}:
    raise RuntimeError(f"The site answered {answered} before the fork.")
