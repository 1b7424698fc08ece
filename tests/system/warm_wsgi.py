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


def _answer(number: int) -> int:
    environ: dict[str, Any] = {"PATH_INFO": "/items/1/", "REMOTE_ADDR": f"192.0.2.{number}"}
    setup_testing_defaults(environ)
    response = application(environ, lambda *_: print)
    response.close()
    return response.status_code


with ThreadPoolExecutor(THREADS) as threads:
    answered = set(threads.map(_answer, range(REQUESTS)))
if answered != {HTTPStatus.OK}:
    raise RuntimeError(f"The site answered {answered} before the fork.")
