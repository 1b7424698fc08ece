"""Recent rejections by rules, from the engine's list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from django.utils.translation import gettext as _

from ..backend import get_engine
from ..engine.usage.rejections import RECORDED_ONE_IN, Rejection
from ..rules.formatting import about, units

#: Maximum number of rejections that are read: more than the lists of all shards keep.
MAX_READ: Final = 100_000

#: The lowest estimate that is shown as a number if a flood has several callers: fewer can be single rejections.
LEAST_ESTIMATE: Final = 5 * RECORDED_ONE_IN


def recent(limit: int = MAX_READ, rule: str | None = None) -> list[Rejection]:
    """Return the latest rejections, at most `limit`. rule: of this rule only.

    `None` if the project's own engine has no such list. Raises EngineUnavailable.
    """
    read = getattr(get_engine(), "recent_rejections", None)
    found: list[Rejection] = read(limit=limit, rule=rule) if read else []
    return found


def certain_times(found: Sequence[Rejection]) -> dict[str, int]:
    """Return how often each counter has rejected, by its name; if a small estimate may be of another caller, at least.

    found: all recent rejections. In a flood of several callers, a record that counts as many may be of one rejection.
    """
    callers = Counter(each.label for each in found)
    return {
        each.counter: sum(divmod(each.times, RECORDED_ONE_IN))
        if each.is_estimate and each.times < LEAST_ESTIMATE and callers[each.label] > 1
        else each.times
        for each in found
    }


def times_in_words(times: int, certain: int, *, is_estimate: bool) -> str:
    """Return the number of rejections as text: "7", "≈ 7,431", or "2 or more"."""
    if certain < times:
        return _("%(times)s or more") % {"times": units(certain)}
    return about(times, is_estimate=is_estimate)
