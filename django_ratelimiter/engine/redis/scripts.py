"""The Lua scripts, put together from their files: `check.lua`, the frame, holds `count.lua`, `refused.lua` and
every algorithm's `NAME.lua`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha1
from importlib.resources import files
from itertools import groupby
from operator import itemgetter
from typing import Final

from .. import algorithms
from ..limits import Algorithm

_FRAMES: Final = files(__package__)
_ALGORITHMS: Final = files(algorithms)

#: A line that says which step the lines after it are; in the frame, which step stands in its place.
_STEP: Final = re.compile(r"^ *--@(\w+)\n", re.MULTILINE)
_FROM: Final = re.compile(r"^--@from (\w+)\n", re.MULTILINE)


def _steps_of(algorithm: str) -> dict[str, str]:
    """The steps of an algorithm by name. Each begins with what stands before the first of them in its file."""
    text = (_ALGORITHMS / f"{algorithm}.lua").read_text("utf-8")
    base = _FROM.search(text)
    shared, *rest = _STEP.split(_FROM.sub("", text))
    own = {name: shared + step for name, step in zip(rest[::2], rest[1::2], strict=True)}
    return {**(_steps_of(base[1]) if base else {}), **own}


def _traits_of(algorithm: Algorithm) -> dict[str, str]:
    """The traits that the frame asks for, as one more step."""
    if "max_delay" in algorithm.options:
        return {"traits": "holds = true\n"}
    return {"traits": "ends = true\n"} if algorithm.traits.keeps_expiry else {}


def _with_algorithms(frame: str) -> str:
    """Put each step of all algorithms where the frame names it: in branches, and not in functions, which Lua would
    make in each call.
    """
    steps = {algorithm: _steps_of(algorithm) | _traits_of(algorithm) for algorithm in Algorithm}

    def branches(step: re.Match[str]) -> str:
        found = [(algorithm.number, steps[algorithm].get(step[1], "")) for algorithm in Algorithm]
        return _branches([next(alike) for _, alike in groupby(found, itemgetter(1))])

    return _STEP.sub(branches, frame)


def _branches(found: Sequence[tuple[int, str]]) -> str:
    """The step of the algorithm with this number, found by halves: to ask for one after the other takes longer.

    found: the number from which on a step holds, and the step.
    """
    if len(found) == 1:
        return found[0][1]
    half = len(found) // 2
    return f"if id < {found[half][0]} then\n{_branches(found[:half])}else\n{_branches(found[half:])}end\n"


def _with_parts(frame: str) -> str:
    """Put count.lua and refused.lua where the frame names them."""
    for part in ("count", "refused"):
        frame = frame.replace(f"--@{part}\n", (_FRAMES / f"{part}.lua").read_text("utf-8"))
    return frame


CHECK: Final = _with_algorithms(_with_parts((_FRAMES / "check.lua").read_text("utf-8"))).encode()
CHECK_SHA: Final = sha1(CHECK, usedforsecurity=False).hexdigest().encode()
TAKE_USAGE: Final = (_FRAMES / "take_usage.lua").read_text("utf-8")
