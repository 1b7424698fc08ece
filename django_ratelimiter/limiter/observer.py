"""The observer of decisions, such as the Prometheus metrics. By default there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..decision import Decision

logger = logging.getLogger("django_ratelimiter")

#: Called with the decision of one call, and its duration in seconds.
Observer = Callable[[Decision, float], None]

#: The observer of this process; `None` = none.
current: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Replace the observer of this process; `None` = remove it."""
    global current
    current = observer


def tell(decision: Decision, seconds: float) -> None:
    """Call the observer. Its exceptions do not affect the request."""
    if current is not None:
        try:
            current(decision, seconds)
        except Exception:  # such as a full disk
            logger.exception("A decision could not be measured.")
