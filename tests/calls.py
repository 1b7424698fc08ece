"""How often each function of ours is called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType


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
