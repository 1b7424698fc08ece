"""The Lua scripts, built from their files: `check.lua` contains `back.lua`, `count.lua`, `rejected.lua` and every
algorithm's `NAME.lua`.
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
from ..algorithms import STEPS
from ..limits import Algorithm

_FRAMES: Final = files(__package__)
_ALGORITHMS: Final = files(algorithms)

#: A line that names the step in the lines after it; in check.lua, the step to insert.
_STEP: Final = re.compile(r"^ *--@(\w+)\n", re.MULTILINE)


def _steps_of(algorithm: str) -> dict[str, str]:
    """Return the steps of an algorithm by name. Each begins with the lines before the first step in its file.

    If its `look` is imported from another algorithm, it has the steps of that, but for those in its own file, if any.
    """
    base, file = STEPS[algorithm].look.__module__.rpartition(".")[2], _ALGORITHMS / f"{algorithm}.lua"
    steps = {} if base == algorithm else _steps_of(base)
    if steps and not file.is_file():
        return steps
    shared, *rest = _STEP.split(file.read_text("utf-8"))
    return steps | {name: shared + step for name, step in zip(rest[::2], rest[1::2], strict=True)}


def _traits_of(algorithm: Algorithm) -> dict[str, str]:
    """Return the traits that check.lua needs, as one more step."""
    if "max_delay" in algorithm.options:
        return {"traits": "holds = true\n"}
    return {"traits": "ends = true\n"} if algorithm.traits.keeps_expiry else {}


def _with_algorithms(frame: str) -> str:
    """Insert each step of all algorithms where check.lua names it, as branches, which cost less than functions."""
    steps = {algorithm: _steps_of(algorithm) | _traits_of(algorithm) for algorithm in Algorithm}

    def branches(step: re.Match[str]) -> str:
        found = [(algorithm.number, steps[algorithm].get(step[1], "")) for algorithm in Algorithm]
        return _branches([next(alike) for _, alike in groupby(found, itemgetter(1))])

    return _STEP.sub(branches, frame)


def _branches(found: Sequence[tuple[int, str]]) -> str:
    """Return branches that select the step of an algorithm by its number, by bisection, which is faster than a list.

    found: for each step, the first number that it applies to.
    """
    if len(found) == 1:
        return found[0][1]
    half = len(found) // 2
    return f"if id < {found[half][0]} then\n{_branches(found[:half])}else\n{_branches(found[half:])}end\n"


def _with_parts(frame: str) -> str:
    """Insert back.lua, count.lua and rejected.lua where check.lua names them."""
    for part in ("back", "count", "rejected"):
        frame = frame.replace(f"--@{part}\n", (_FRAMES / f"{part}.lua").read_text("utf-8"))
    return frame


CHECK: Final = _with_algorithms(_with_parts((_FRAMES / "check.lua").read_text("utf-8"))).encode()
CHECK_SHA: Final = sha1(CHECK, usedforsecurity=False).hexdigest().encode()
TAKE_USAGE: Final = (_FRAMES / "take_usage.lua").read_text("utf-8")
