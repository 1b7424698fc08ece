"""The Python calls of a request; see `inprocess.calls`. It uses its own server."""

from __future__ import annotations

from typing import Any

from ..inprocess.calls import CASES, measure_all
from ..setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    """Return by way and case: all calls of a caller who comes again and of a new one, and what the limiter adds."""
    found = measure_all(list(CASES), [False, True])
    return {
        way: {
            name: {
                "again": counted.again.total(),
                "added": counted.added,
                "first": counted.first.total() if counted.first else None,
            }
            for name, counted in cases.items()
        }
        for way, cases in (("thread", found[False]), ("loop", found[True]))
    }
