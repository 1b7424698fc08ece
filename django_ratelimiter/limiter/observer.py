"""Whoever measures decisions is told of each and how long it took; usually there is nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..decision import Decision

logger = logging.getLogger("django_ratelimiter")

#: Called with what one call decided, and how many seconds that took.
Observer = Callable[[Decision, float], None]

#: Who measures the decisions of this process; `None` = nobody.
current: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Tell this one of every decision of this process from now on, and nobody else; `None` = nobody."""
    global current
    current = observer


def tell(decision: Decision, seconds: float) -> None:
    """Tell the observer, whose failure breaks no request."""
    if current is not None:
        try:
            current(decision, seconds)
        except Exception:  # such as a full disk
            logger.exception("A decision could not be measured.")
