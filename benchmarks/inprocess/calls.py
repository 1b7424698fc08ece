"""Python calls of a warm request: `python -m benchmarks.inprocess.calls` (REDIS_SERVER, REDIS_URL: which server).

  --by-function CASE   which functions are called how often, of one case of the table
  --async              on an event loop

A request goes through Django's whole handler, with no middleware but ours, to a view that does nothing, on a real
Redis; see `counting` for what counts. Making the request is not counted. Nor is waiting on an event loop: calls in
`asyncio`, `selectors`, `threading` and `concurrent.futures`, since their number depends on when a reply arrives. Django
looks through a project's URLs one by one, with two calls for each: a view is counted as if it were the first.

again: a caller of whom this process has counted requests before. first: one who comes for the first time. The figure
is the median of several callers. The log line of a refusal is not written, except where the case says so.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median_low
from typing import Final, NamedTuple

from django.http import HttpRequest

from example_project.redis_server import redis_url

from .counting import Calls, async_calls_of, calls_of, follow_threads
from .project import OURS, async_handler, make_tier, new_request, set_up, sync_handler

#: So many callers are counted, each after so many visits.
CALLERS, VISITS = 15, 4
PACKAGE: Final = "django_ratelimiter"


class Case(NamedTuple):
    """A row of the table. view: its name. status: what answers. tiers: whether there are any.

    pause: seconds before the request. logged: whether log lines are written, to nowhere.
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
    "three rules, refused": Case("three-refused", 429),
    "three rules, refused, logged": Case("three-refused", 429, logged=True),
    "three rules, synced": Case("synced"),
    "three rules, synced, a second later": Case("synced", pause=1.05),
    "three rules, tiers": Case("three", tiers=True),
    "user, key and address, tiers": Case("known", tiers=True),
}


class Counted(NamedTuple):
    """What was called: for a caller who comes again, for one who is new, and by Django without the limiter."""

    again: Calls
    first: Calls | None
    bare: Calls


class Meter:
    """Counts the calls of requests. Enter it with Django set up.

    on_loop: whether on an event loop.
    """

    def __init__(self, *, on_loop: bool) -> None:
        follow_threads()  # there are none yet
        self._on_loop = on_loop
        self._runner = asyncio.Runner()
        make = async_handler if on_loop else sync_handler
        self._bare, self._limited = make(), make(OURS)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._runner.close()

    def count(self, case: Case, first: int) -> Counted:
        """Count the calls of a case, for callers from this number on."""
        logging.getLogger(PACKAGE).setLevel(logging.WARNING if case.logged else logging.ERROR)
        callers = range(first, first + CALLERS)
        new = [self._request(case, caller, self._limited, 200) for caller in callers]
        for _ in range(VISITS - 1):
            for caller in callers:
                self._request(case, caller, self._limited, case.status)
        time.sleep(case.pause)
        again = [self._request(case, caller, self._limited, case.status) for caller in callers]
        bare = [self._request(case, caller, self._bare, 200) for caller in callers]
        return Counted(typical(again), typical(new) if case.status == 200 else None, typical(bare))

    def _request(self, case: Case, caller: int, handler: Callable[[HttpRequest], object], status: int) -> Calls:
        request = new_request(case.view, caller, on_loop=self._on_loop)
        response: object = None

        def respond() -> None:
            nonlocal response
            response = handler(request)

        async def arespond() -> None:
            nonlocal response
            response = await handler(request)  # type: ignore[misc]

        calls = self._runner.run(async_calls_of(arespond)) if self._on_loop else calls_of(respond)
        found = response.status_code  # type: ignore[attr-defined]
        if found != status:
            raise RuntimeError(f"{case.view} answered {found} instead of {status}.")
        return calls


def typical(counted: Sequence[Calls]) -> Calls:
    """Return the calls of the request whose number is the median."""
    number = median_low(calls.total() for calls in counted)
    return next(calls for calls in counted if calls.total() == number)


def measured(names: Sequence[str], *, on_loop: bool) -> Iterator[tuple[str, Counted]]:
    """Count these cases, those with tiers last. Django must have been set up for `project`."""
    with Meter(on_loop=on_loop) as meter:
        for number, name in enumerate(names):
            yield name, meter.count(CASES[name], number * 1_000 + 500_000 * on_loop)


def table(cases: dict[str, Counted]) -> str:
    """Return a table of all cases, the view that no rule names among them."""
    own = cases["no rule"].bare.total()
    lines = [f"{'':38}{'again':>7}{'added':>7}{'ours':>7}{'first':>7}{'added':>7}   files of ours"]
    for name, (again, first, bare) in cases.items():
        added = again.total() - bare.total()
        figures = f"{own + added:7}{added:7}{again.within(PACKAGE).total():7}"
        if first is not None:
            added = first.total() - bare.total()
            figures += f"{own + added:7}{added:7}"
        else:
            figures += f"{'-':>7}{'-':>7}"
        lines.append(f"{name:38}{figures}{len(again.within(PACKAGE).files):8}")
    return "\n".join([*lines, f"Django's own, without the limiter: {own}"])


def by_function(calls: Calls) -> str:
    """Return the functions of a request, those that are called most often first."""
    lines = []
    for function, number in sorted(calls.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"{number:5}  {function.name}  {shortened(function.file)}:{function.line}")
    return "\n".join([f"{calls.total():5}  in all, in {len(calls.files)} files", *lines])


def shortened(file: str) -> str:
    """Return the part of a path that tells which file it is."""
    for folder in ("/site-packages/", f"/{PACKAGE}/", "/lib/"):
        _before, found, rest = file.rpartition(folder)
        if found:
            return f"{PACKAGE}/{rest}" if folder == f"/{PACKAGE}/" else rest
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description="Python calls of a warm request")
    parser.add_argument("--by-function", metavar="CASE", choices=CASES, help="; ".join(CASES))
    parser.add_argument("--async", action="store_true", dest="on_loop", help="on an event loop")
    options = parser.parse_args()
    names = [options.by_function] if options.by_function else list(CASES)
    with redis_url() as url, tempfile.TemporaryDirectory() as folder:
        set_up(url, folder)
        ways = [options.on_loop] if options.by_function or options.on_loop else [False, True]
        found: dict[bool, dict[str, Counted]] = {way: {} for way in ways}
        for tiers in (False, True):
            if tiers:
                make_tier()
            for way in ways:
                found[way] |= measured([name for name in names if CASES[name].tiers is tiers], on_loop=way)
    for way, cases in found.items():
        if options.by_function:
            print(by_function(cases[options.by_function].again))
        else:
            print(f"{'On an event loop' if way else 'In a thread'}\n{table(cases)}\n")


if __name__ == "__main__":
    main()
