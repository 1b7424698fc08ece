"""Python calls of a warm request: `python -m benchmarks.inprocess.calls` (REDIS_SERVER, REDIS_URL: which server).

  CASE ...        these rows of the table
  --by-function   which functions are called how often, instead of the table
  --async         on an event loop
  --json          what the limiter adds, by case

A request goes through Django's whole handler, with no middleware but ours, to a view that does nothing, with a real
Redis; see `counting` for what counts. Making the request is not counted. Nor is waiting on an event loop: calls in
`asyncio`, `selectors`, `threading` and `concurrent.futures`, because their number depends on when a reply arrives.
Django tries a project's URLs one by one, with two calls for each: a view is counted as if it were the first. What the
limiter adds is the difference to the same request without it; for a rejection, to that of a view that rejects.

again: a caller of which this process has counted requests before. first: a new caller. The figure
is the median of several callers. The log line of a rejection is not written, except if the case says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from example_project.redis_server import redis_url

from .counting import Calls, async_calls_of, calls_of, follow_threads

if TYPE_CHECKING:  # Django must be set up first
    from django.http import HttpRequest

#: Number of callers that are counted, and of visits of each before that.
CALLERS, VISITS = 15, 4
PACKAGE: Final = "django_ratelimiter"
MIDDLEWARE: Final = f"{PACKAGE}.middleware.RateLimitMiddleware"


class Case(NamedTuple):
    """A row of the table. view: its name. status: of the response. tiers: whether there are any.

    pause: seconds before the request. logged: whether log lines are written, to a null handler.
    """

    view: str
    status: int = 200
    tiers: bool = False
    pause: float = 0.0
    logged: bool = False


CASES: Final = {
    "no rule": Case("free"),
    "one rule": Case("one"),
    "one rule, refused": Case("one-refused", 429),
    "three rules": Case("three"),
    "three rules, refused": Case("refused", 429),
    "three rules, refused, logged": Case("refused", 429, logged=True),
    "three rules, synced": Case("synced-seldom"),
    # By now, the process has a local counter for the counter that all callers share.
    "three rules, synced, beside others": Case("synced-seldom"),
    "three rules, synced, a second later": Case("synced", pause=1.05),
    "three rules, tiers": Case("three", tiers=True),
    "user, key and address, tiers": Case("known", tiers=True),
}


class Counted(NamedTuple):
    """The calls for a caller who comes again, for a new one, and of Django without the limiter."""

    again: Calls
    first: Calls | None
    bare: Calls

    @property
    def added(self) -> int:
        """The number of calls that the limiter adds to the request of a caller who comes again."""
        return self.again.total() - self.bare.total()

    @property
    def added_first(self) -> int | None:
        """The number for a new caller; `None` if a new one cannot be rejected."""
        return self.first.total() - self.bare.total() if self.first else None


class Meter:
    """Counts the calls of requests, after Django is set up. on_loop: on an event loop."""

    def __init__(self, *, on_loop: bool) -> None:
        follow_threads()  # there are none yet
        self._on_loop = on_loop
        self._runner = asyncio.Runner()
        self._bare, self._limited = (handler(*middleware, on_loop=on_loop) for middleware in ((), (MIDDLEWARE,)))

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._runner.close()

    def count(self, case: Case, first: int) -> Counted:
        """Count the calls of a case, for callers with this number and the next ones."""
        logging.getLogger(PACKAGE).setLevel(logging.WARNING if case.logged else logging.ERROR)
        callers = range(first, first + CALLERS)
        new = [self._request(case, caller, self._limited, 200) for caller in callers]
        for _ in range(VISITS - 1):
            for caller in callers:
                self._request(case, caller, self._limited, case.status)
        time.sleep(case.pause)
        again = [self._request(case, caller, self._limited, case.status) for caller in callers]
        without = case._replace(view="refusing") if case.status == 429 else case
        bare = [self._request(without, caller, self._bare, case.status) for caller in callers]
        return Counted(typical(again), typical(new) if case.status == 200 else None, typical(bare))

    def _request(self, case: Case, caller: int, respond: Callable[[HttpRequest], Any], status: int) -> Calls:
        request = new_request(case.view, caller, on_loop=self._on_loop)
        response: Any = None

        def work() -> None:
            nonlocal response
            response = respond(request)

        async def async_work() -> None:
            nonlocal response
            response = await respond(request)

        calls = self._runner.run(async_calls_of(async_work)) if self._on_loop else calls_of(work)
        if response.status_code != status:
            raise RuntimeError(f"{case.view} answered {response.status_code} instead of {status}.")
        return at_first_url(calls)


def at_first_url(calls: Calls) -> Calls:
    """Return these calls as if the view were the first of the project's URLs."""
    passing = {function for function in calls if function.name in ("URLPattern.resolve", "RoutePattern.match")}
    return Calls({function: 1 if function in passing else number for function, number in calls.items()})


def handler(*middleware: str, on_loop: bool) -> Callable[[HttpRequest], Any]:
    """Return Django's own request handler, with only this middleware."""
    from django.conf import settings  # noqa: TID251  a separate project
    from django.core.handlers.base import BaseHandler

    settings.MIDDLEWARE = list(middleware)
    made = BaseHandler()
    made.load_middleware(is_async=on_loop)
    return made.get_response_async if on_loop else made.get_response


def new_request(view: str, caller: int, *, on_loop: bool) -> HttpRequest:
    """Return a new request of this caller: anonymous, or, for the view "known", signed in and with an API key."""
    from django.contrib.auth.models import AnonymousUser
    from django.test import RequestFactory

    from ..contest import address
    from ..site.middleware import set_user
    from ..site.rules import KEY

    known = view == "known"
    fields: dict[str, Any] = {"HTTP_X_API_KEY": KEY} if known else {}
    request = RequestFactory().get(f"/{'async/' * on_loop}{view}/", REMOTE_ADDR=address(caller), **fields)
    request.user = AnonymousUser()
    set_user(request, str(caller) if known else None)
    return request


def set_up(url: str, folder: str) -> None:
    """Set Django up for the benchmark's site, with rules and no tiers, on this Redis and a database in this folder.

    Data that is read at intervals is not read again meanwhile, however long it takes.
    """
    os.environ |= {"BENCH_REDIS_URL": url, "BENCH_FOLDER": folder, "BENCH_LIMITER": "ours"}
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.site.settings"
    from ..site import settings
    from ..site.rules import main as make_database

    settings.RATELIMITER |= {"TIER_CACHE_SECONDS": 600, "VERSION_CHECK_INTERVAL": 600, "DEADLINE_MS": 60_000}
    make_database()


def typical(counted: Sequence[Calls]) -> Calls:
    """Return the calls of the request whose number is the median."""
    number = median_low(calls.total() for calls in counted)
    return next(calls for calls in counted if calls.total() == number)


def measured(names: Sequence[str], *, on_loop: bool) -> Iterator[tuple[str, Counted]]:
    """Count these cases, with and without tiers, in the current set-up of Django."""
    with Meter(on_loop=on_loop) as meter:
        for name in names:
            yield name, meter.count(CASES[name], list(CASES).index(name) * 1_000 + 500_000 * on_loop)


def measure_all(names: Sequence[str], ways: Sequence[bool]) -> dict[bool, dict[str, Counted]]:
    """Count these cases, on an event loop or not. Sets up Django, a database and perhaps a server."""
    found: dict[bool, dict[str, Counted]] = {way: {} for way in ways}
    with redis_url() as url, tempfile.TemporaryDirectory() as folder:
        set_up(url, folder)
        from ..site.rules import make_tier

        for tiers in (False, True):
            if tiers:
                make_tier()
            for way in ways:
                found[way] |= measured([name for name in names if CASES[name].tiers is tiers], on_loop=way)
    return found


def table(cases: dict[str, Counted]) -> str:
    """Return a table of these cases."""
    lines = [f"{'':38}{'again':>7}{'added':>7}{'ours':>7}{'first':>7}{'added':>7}   files of ours"]
    for name, counted in cases.items():
        again, first, _bare = counted
        figures = f"{again.total():7}{counted.added:7}{again.within(PACKAGE).total():7}"
        figures += f"{first.total():7}{counted.added_first:7}" if first else f"{'-':>7}{'-':>7}"
        lines.append(f"{name:38}{figures}{len(again.within(PACKAGE).files):8}")
    own = {counted.bare.total() for counted in cases.values()}
    return "\n".join([*lines, f"Django's own, without the limiter: {', '.join(map(str, sorted(own)))}"])


def by_function(calls: Calls) -> str:
    """Return the functions of a request, those with most calls first."""
    lines = []
    for function, number in sorted(calls.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"{number:5}  {function.name}  {shortened(function.file)}:{function.line}")
    return "\n".join([f"{calls.total():5}  in all, in {len(calls.files)} files", *lines])


def shortened(file: str) -> str:
    """Return the part of a path that identifies the file."""
    for folder in ("/site-packages/", f"/{PACKAGE}/", "/lib/"):
        _before, found, rest = file.rpartition(folder)
        if found:
            return f"{PACKAGE}/{rest}" if folder == f"/{PACKAGE}/" else rest
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="Python calls of a warm request")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"one of: {'; '.join(CASES)}")
    parser.add_argument("--by-function", action="store_true", help="which functions are called how often")
    parser.add_argument("--async", action="store_true", dest="on_loop", help="on an event loop")
    parser.add_argument("--json", action="store_true", help="what the limiter adds, by case")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    short = options.by_function or options.json or options.on_loop
    for way, found in measure_all(options.cases or list(CASES), [options.on_loop] if short else [False, True]).items():
        if options.json:
            print(json.dumps({name: {"again": each.added, "first": each.added_first} for name, each in found.items()}))
        elif options.by_function:
            print("\n\n".join(f"{name}\n{by_function(counted.again)}" for name, counted in found.items()))
        else:
            print(f"{'On an event loop' if way else 'In a thread'}\n{table(found)}\n")


if __name__ == "__main__":
    main()
