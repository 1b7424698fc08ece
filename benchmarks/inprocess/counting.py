"""Counts the Python-level calls of a piece of work.

Each "call" event of `sys.setprofile` counts: a Python frame that starts, or a generator or coroutine that is
resumed. Calls of C functions do not count. Nor do list, set and dict comprehensions: Python 3.11 makes a
frame for each, later versions do not. Other threads count if they were started after `follow_threads`. No garbage is
collected meanwhile: it may be that of earlier work, and its finalizers would count.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

INLINED: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})
#: Modules of event loops and thread pools: the number of their calls depends on when a reply arrives.
WAITING: Final = ("asyncio", "selectors", "concurrent/futures", "threading")


class Function(NamedTuple):
    """A function that was called: its file, its first line, and its qualified name."""

    file: str
    line: int
    name: str


class Calls(Counter[Function]):
    """How often each function was called."""

    @property
    def files(self) -> set[str]:
        """The files of these functions."""
        return {function.file for function in self}

    def within(self, *packages: str) -> Calls:
        """Return the calls of functions in these packages or modules, such as `redis` or `threading`."""
        return Calls({each: number for each, number in self.items() if _is_within(each.file, packages)})

    def without(self, *packages: str) -> Calls:
        """Return all others."""
        return Calls({each: number for each, number in self.items() if not _is_within(each.file, packages)})


def _is_within(file: str, packages: tuple[str, ...]) -> bool:
    return any(f"/{package}/" in file or file.endswith(f"/{package}.py") for package in packages)


#: The calls of the work that is being counted; `None` = none.
_counted: Counter[CodeType] | None = None


def _note(frame: FrameType, event: str, _argument: Any) -> None:
    if event == "call" and _counted is not None:
        _counted[frame.f_code] += 1


def follow_threads() -> None:
    """Also count in threads that are started from now on. This makes them slower for their whole life."""
    threading.setprofile(_note)


def calls_of(work: Callable[[], object]) -> Calls:
    """Do this work once and return its Python-level calls."""
    _begin()
    try:
        work()
    finally:
        _stop()
    return _end(work)


async def async_calls_of(work: Callable[[], Awaitable[object]]) -> Calls:
    """Return the calls of work on an event loop, without those of the loop itself."""
    _begin()
    try:
        await work()
    finally:
        _stop()
    return _end(work).without(*WAITING)


def _begin() -> None:
    global _counted
    _counted = Counter()
    gc.disable()
    sys.setprofile(_note)


def _stop() -> None:
    sys.setprofile(None)
    gc.enable()


def _end(work: Callable[[], object]) -> Calls:
    global _counted
    codes, _counted = _counted or Counter(), None
    for caller in (work, async_calls_of, _stop):  # these are called by the counting itself
        codes.pop(caller.__code__, None)
    calls = Calls()
    for code, number in codes.items():
        if code.co_name not in INLINED:
            calls[Function(code.co_filename, code.co_firstlineno, code.co_qualname)] += number
    return calls
