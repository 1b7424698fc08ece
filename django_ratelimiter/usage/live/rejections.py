"""Recent rejections by rules, from the engine's list."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _

from ...backend import get_engine
from ...engine.usage.rejections import RECORDED_ONE_IN, Rejection
from ...rules.formatting import units

#: Maximum number of rejections that a list keeps.
MAX_READ: Final = 1_000

#: The lowest number of times that is shown of an estimate: fewer can be a single rejection.
LEAST_ESTIMATE: Final = 5 * RECORDED_ONE_IN


def recent(limit: int = MAX_READ, rule: str | None = None) -> list[Rejection]:
    """Return the latest rejections, at most `limit`. rule: of this rule only.

    `None` if the project's own engine has no such list. Raises EngineUnavailable.
    """
    read = getattr(get_engine(), "recent_rejections", None)
    found: list[Rejection] = read(limit=limit, rule=rule) if read else []
    return found


def known_times(times: int, *, is_estimate: bool) -> int:
    """Return how often at least: 1 if an estimate comes from a few records, which may be of one rejection each."""
    return 1 if is_estimate and times < LEAST_ESTIMATE else times


def times_in_words(times: int, *, is_estimate: bool) -> str:
    """Return the number of rejections as text: "7", "≈ 7,431", and "1 or more" of a few records."""
    if not is_estimate:
        return units(times)
    return f"≈ {units(times)}" if times >= LEAST_ESTIMATE else _("1 or more")
