"""Names of the counters of views: decorators that a module calls while it is imported have different ones."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Final

#: By module: its `__spec__`, which a reload replaces, and how many of its decorators have each name and number so far.
_decorators: Final[dict[str, tuple[object, Counter[tuple[str, int]]]]] = {}


def distinct(name: str, number: int, home: str, frame: FrameType) -> str:
    """Return the name of the counter of a decorator that is called in this frame, on a view of the module `home`.

    All processes must use the same, whatever they import first: it depends on the module whose import calls the
    decorator, and on the decorators before it there. Called later, perhaps for each request, it has the view's name.
    """
    module = _importing(frame)
    if module is None:
        return name
    spec = sys.modules[module].__spec__
    known = _decorators.get(module)
    if known is None or known[0] is not spec:
        known = _decorators[module] = spec, Counter()
    known[1][name, number] += 1
    nth = known[1][name, number]
    return ":".join(filter(None, (name, module if module != home else "", str(nth) if nth > 1 else "")))


def _importing(frame: FrameType | None) -> str | None:
    """Return the module whose import has led to this frame; `None` = a function of Django has, as for a request."""
    called_in = frame and frame.f_globals
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("django."):
        if frame.f_code.co_name == "<module>":
            name = str(frame.f_globals.get("__name__"))
            is_module = getattr(sys.modules.get(name), "__dict__", None) is frame.f_globals
            # A program's own module runs as long as the program.
            return name if is_module and (name != "__main__" or called_in is frame.f_globals) else None
        frame = frame.f_back
    return None
