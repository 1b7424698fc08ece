"""The Lua scripts, put together from their files: `check.lua`, the frame, holds `refused.lua` and every algorithm's
`NAME.lua`.
"""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files
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
    make anew in each call.
    """
    steps = {algorithm: _steps_of(algorithm) | _traits_of(algorithm) for algorithm in Algorithm}

    def branches(step: re.Match[str]) -> str:
        name = step[1]
        found = [f"if id == {algorithm.number} then\n{own[name]}" for algorithm, own in steps.items() if name in own]
        return "else".join(found) + "end\n"

    return _STEP.sub(branches, frame)


def _with_refusals(frame: str) -> str:
    """Put refused.lua where the frame names it."""
    return frame.replace("--@refused\n", (_FRAMES / "refused.lua").read_text("utf-8"))


CHECK: Final = _with_algorithms(_with_refusals((_FRAMES / "check.lua").read_text("utf-8"))).encode()
CHECK_SHA: Final = sha1(CHECK, usedforsecurity=False).hexdigest().encode()
TAKE_USAGE: Final = (_FRAMES / "take_usage.lua").read_text("utf-8")
