"""The Lua scripts, put together from their files: the frame, `check.lua`, holds every algorithm's `NAME.lua`."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Final

from .limits import Algorithm

_FOLDER = files(__package__)


def _with_algorithms(frame: str) -> str:
    """Put each algorithm, which ends by returning its steps, in a branch: a call pays only for those it uses."""
    branches = [
        f"if id == {algorithm.number} then\n{(_FOLDER / 'algorithms' / f'{algorithm}.lua').read_text('utf-8')}"
        for algorithm in Algorithm
    ]
    script = frame.replace("--@ALGORITHMS@", "else".join(branches) + "end")
    for algorithm in Algorithm:  # one that takes from another asks for it by name
        script = script.replace(f"algorithm('{algorithm}')", f"algorithm({algorithm.number})")
    return script


CHECK: Final = _with_algorithms((_FOLDER / "check.lua").read_text("utf-8")).encode()
CHECK_SHA: Final = sha1(CHECK, usedforsecurity=False).hexdigest().encode()
TAKE_USAGE: Final = (_FOLDER / "take_usage.lua").read_text("utf-8")
