"""What becomes of decisions and how long they take, told to one who measures them; usually there is nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from ..decision import Decision
from .io import Path

logger = logging.getLogger("django_ratelimiter")

#: Told of what one call decided, and how many seconds that took.
Observer = Callable[[Decision, float], None]

_observer: Observer | None = None


def observe(observer: Observer | None) -> None:
    """Tell this one of every decision of this process from now on, and nobody else; `None` = nobody."""
    global _observer
    _observer = observer


def measured(deciding: Path[Decision | None]) -> Path[Decision | None]:
    """The same path, with its end told to the observer. Without one it is that very path."""
    return deciding if _observer is None else _measured(deciding, _observer)


def _measured(deciding: Path[Decision | None], told: Observer) -> Path[Decision | None]:
    began = perf_counter()
    latest = yield from deciding
    if latest:
        try:
            told(latest, perf_counter() - began)
        except Exception:  # such as a full disk: requests go on
            logger.exception("A decision could not be measured.")
    return latest
