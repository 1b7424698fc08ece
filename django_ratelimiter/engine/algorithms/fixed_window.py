"""Fixed window: at most `capacity` units between the start and the end of a window.

State: (last, used, start). Windows begin at multiples of their length on the clock, or each with a key's first
request, or at the start of a calendar window; then `terms.extra` is the start of the caller's current window.
Allows when used + cost <= capacity. Up to twice the quota can be used around a boundary.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..limits import Limit, Terms
from ..registry import ANCHORS, ON_CALENDAR, ON_FIRST_REQUEST
from ..registry import gettext_noop as _
from . import Sentence, State, Units


def look(state: State | None, at: int, terms: Terms) -> tuple[int, int, int]:
    used = state[1] if state else 0
    if terms.rate == ON_FIRST_REQUEST:
        start = state[2] if state and used and at - state[2] < terms.period else at
        if not state or start != state[2]:
            used = 0
    else:
        start = terms.extra if terms.rate == ON_CALENDAR else at - at % terms.period
        if not start <= at < start + terms.period:
            return -1, 0, start
        if state and state[0] < start:
            used = 0
    return max(terms.capacity - used, 0), used, start


def spend(used: int, cost: int, terms: Terms) -> int:
    return max(used, min(used + cost, terms.capacity))


def wait(used: int, start: int, at: int, cost: int, terms: Terms, state: State | None) -> int:
    return start + terms.period - at


def reset(used: int, start: int, at: int, terms: Terms, state: State | None, spent: int) -> int:
    return start + terms.period - at if used else 0


def store(used: int, start: int, at: int, terms: Terms, state: State | None, cost: int, added: int) -> State:
    return at, used, start


def refund(state: State, cost: int, spent_at: int, terms: Terms) -> State | None:
    last, used, start = state
    if terms.rate != ON_FIRST_REQUEST:
        start = terms.extra if terms.rate == ON_CALENDAR else spent_at - spent_at % terms.period
    if not start <= min(spent_at, last) <= max(spent_at, last) < start + terms.period:
        return None
    return last, max(used - cost, 0), state[2]


def describe(limit: Limit, cost: int) -> Iterator[Sentence]:
    if limit.calendar:
        yield (
            _begins(limit.calendar, limit.anchor_day or 1),
            {
                "zone": limit.timezone or "UTC",
                "day": limit.anchor_day or 1,
            },
        )
    elif limit.anchor == ANCHORS[ON_FIRST_REQUEST]:
        text = _(
            "Each counter's window begins with its first request and lasts %(window)s; the end of one and the start "
            "of the next can together allow %(less)s. A rejected caller can retry when the window is over."
        )
        yield text, {"less": Units(2 * limit.quota - 1)}
        return
    else:
        yield _("The count restarts with each window of %(window)s by the clock (UTC)."), {}
    text = _(
        "The last moment of one window and the first of the next can together allow %(twice)s. "
        "A rejected caller can retry when the next window begins."
    )
    yield text, {"twice": Units(2 * limit.quota)}


def _begins(calendar: str, day: int) -> str:
    """Return in words when a calendar window begins."""
    texts = {
        "day": _("The count restarts at midnight in %(zone)s."),
        "week": _("The count restarts on Mondays at midnight in %(zone)s."),
        "month": _("The count restarts on day %(day)s of each month, at midnight in %(zone)s."),
        "year": _("The count restarts on the first of January at midnight in %(zone)s."),
    }
    if day > 28:
        texts["month"] = _(
            "The count restarts on day %(day)s of each month, or the last day of a shorter one, "
            "at midnight in %(zone)s."
        )
    return texts[calendar]
