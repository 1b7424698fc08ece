"""What a limiter adds to an asynchronous view under uvicorn, with one worker for each limiter; see `web`."""

from __future__ import annotations

from typing import Any

from ..setting import Setting
from ..sites import SITES_ON_LOOP
from .web import measured


def measure(setting: Setting) -> dict[str, Any]:
    """Return by name: microseconds by way, and requests per second."""
    return measured(setting, SITES_ON_LOOP, on_loop=True)
