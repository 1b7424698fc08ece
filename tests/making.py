"""Rules, requests, commands, a clock that only sleeping moves, an engine to be waited for, and what is called."""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from math import ceil
from types import FrameType
from typing import Any
from unittest.mock import Mock

from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.http import HttpRequest
from django.test import AsyncClient, Client, RequestFactory

from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules import cache

MakeRule = Callable[..., Rule]


def make_rule(
    slug: str,
    quota: int = 2,
    tier: Tier | None = None,
    algorithm: str = "token_bucket",
    limit: dict[str, Any] | None = None,
    **fields: Any,
) -> Rule:
    """Make a rule of one limit: `make_rule("slug", quota=2, tier=None, algorithm=…, **fields of the rule)`.

    The window is a day, so that no edge of it falls into a test. limit: further fields of the limit.
    """
    options = {"window_seconds": 86_400, **(limit or {})}
    with cache.editing():
        rule = Rule.objects.create(slug=slug, **{"name": slug, "mode": "enforce", **fields})
        RuleLimit.objects.create(rule=rule, tier=tier, algorithm=algorithm, quota=quota, **options)
    return rule


def request_of(user: Any, path: str = "/", **meta: str) -> HttpRequest:
    """A request of a user, as the authentication middleware leaves it."""
    request = RequestFactory().get(path, **meta)
    request.user = user
    return request


def client_of(user: Any, kind: type[Client] = Client, **options: Any) -> Any:
    """A client that a user has logged in with."""
    client = kind(**options)
    client.force_login(user)
    return client


def update(rows: Any, **values: Any) -> None:
    """Change all rows of a model or those of a query, and tell this process, which no signal does."""
    getattr(rows, "objects", rows).update(**values)
    cache.invalidate()


def save(row: Any, **values: Any) -> None:
    """Save a row with these values."""
    for name, value in values.items():
        setattr(row, name, value)
    row.save()


@contextmanager
def in_another_process() -> Iterator[None]:
    """What is committed meanwhile is not told to this process."""
    cache.rules_committed.disconnect(dispatch_uid="django_ratelimiter.mark_outdated")
    try:
        yield
    finally:
        cache.connect()


def failing(error: BaseException) -> Mock:
    """A function that raises this error, whatever it is called with."""
    function = Mock(side_effect=error)
    function.__qualname__ = "failing"  # Django names receivers by it
    return function


def manage(*words: str, **options: Any) -> str:
    """Run a subcommand of `ratelimit`, and return what it writes."""
    call_command("ratelimit", *words, stdout=(out := StringIO()), **options)
    return out.getvalue()


def managed(*words: str) -> tuple[int, str]:
    """Run a subcommand that may fail: its exit code, and all that it wrote."""
    out = StringIO()
    try:
        call_command("ratelimit", *words, stdout=out, stderr=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def fork() -> int:
    """Fork, though threads of other tests may still run, of which Python warns: the child needs none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def calls_of(act: Callable[[], object]) -> Counter[str]:
    """Return the functions that run in this thread, such as "rules/cache.py:connect", with the number of calls."""
    found = Counter[str]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename.partition("/django_ratelimiter/")[2]):
            found[f"{name}:{frame.f_code.co_qualname}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return found


class Clock:
    """Time in microseconds, which passes only while somebody sleeps. slept: for how long each time, in seconds."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000_000_000
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def __call__(self) -> int:
        return self.now_us

    def seconds(self) -> float:
        """The same in seconds since the clock was made."""
        return (self.now_us - 1_700_000_000_000_000) / 1_000_000

    def sleep(self, seconds: float) -> None:
        """Let time pass, and `meanwhile` happen."""
        self.slept.append(seconds)
        self.now_us += ceil(round(seconds * 1_000_000, 3))
        self.meanwhile()

    async def asleep(self, seconds: float) -> None:
        """The same for coroutines."""
        self.sleep(seconds)


class Remote:
    """An engine as if it had to wait for something, so that event loops ask it in threads."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine

    def to_async(self) -> None:
        """It has no engine for event loops."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _awaiting(name: str) -> Any:
    method = getattr(AsyncClient, name)

    def ask(self: Awaiting, *given: Any, REMOTE_ADDR: str = "127.0.0.1", **options: Any) -> Any:
        self.peer = REMOTE_ADDR
        response = async_to_sync(method)(self, *given, **options)
        response.wsgi_request = response.asgi_request
        return response

    return ask


class Awaiting(AsyncClient):
    """A client of the asynchronous handler, used like one of the other, also with REMOTE_ADDR."""

    peer: str
    get, post, options = (_awaiting(name) for name in ("get", "post", "options"))

    async def request(self, **request: Any) -> Any:
        return await super().request(**request, client=[self.peer, 80])
