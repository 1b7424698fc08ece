"""The machine instructions of a request; see `benchmarks.instructions`. It uses its own server."""

from __future__ import annotations

from typing import Any

from .. import instructions
from ..setting import Setting


def measure(_setting: Setting) -> dict[str, Any]:
    """Return by row the thousands of instructions of a request, and why some could not be counted."""
    return instructions.measure()
