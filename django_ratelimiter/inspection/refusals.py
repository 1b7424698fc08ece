"""The last rejections of a caller, from the engine's list of recent ones, if it has one; and the last denials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

from ..backend import get_engine
from ..engine.base import Charge
from ..engine.usage.refusals import CounterRefusals
from ..exceptions import EngineUnavailable
from ..identity import digest
from ..usage.live import denials
from ..values.access import KINDS
from ..values.references import reference_of
from .caller import Caller
from .counters import Counters

#: Number of recent rejections of all callers that are searched.
MAX_READ: Final = 1_000

#: Maximum number of the caller's rejections, and denials, that are returned.
MAX_SHOWN: Final = 20


class CallerRefusal(NamedTuple):
    """Requests of a caller that a rule has rejected recently."""

    rule: Annotated[str, "Its name."]
    at: Annotated[datetime, "The time of the last one."]
    since: Annotated[datetime, "The time of the first one."]
    times: int
    shadow: Annotated[bool, "They would have been rejected if the rule were enforced."]
    is_estimate: Annotated[bool, "Some may have been missed."]
    tier: Annotated[str, "The tier of the caller at that time; empty = none."]
    reference: Annotated[str, "In the responses."]


def refusals_of(found: Counters) -> list[CallerRefusal]:
    """Return the caller's rejections, the latest first; empty if the engine has no list of them."""
    names = {(each.rule.slug, each.digest): each.rule.name for each in found.own}
    if found.problem or not names:
        return []
    own = [
        CallerRefusal(
            names[row.rule, row.partition],
            _moment(row.at_us),
            _moment(row.since_us),
            row.times,
            row.shadow,
            row.is_estimate,
            row.tier,
            reference_of(row.rule, row.partition),
        )
        for row in _recent(found.peeked)
        if (row.rule, row.partition) in names
    ]
    return sorted(own, key=lambda each: each.at, reverse=True)[:MAX_SHOWN]


def denials_of(caller: Caller, found: Counters) -> list[denials.DeniedCaller]:
    """Return the caller's denials, the latest first; one for each entry and view. Empty while Redis is out of reach.

    found: the caller's counters. If the denials were not read with them, this is one call of Redis.
    """
    if found.problem:
        return []
    if caller.kind == "digest":
        digests = [] if caller.is_everybody or caller.is_nobody else [caller.digest]
    else:
        partitions = (caller.partition((kind,)) for kind in KINDS)
        digests = [digest(each) for each in partitions if each is not None]
    if not digests:
        return []
    try:
        return denials.denials_by(digests, MAX_SHOWN, found.peeked and found.peeked.denials)
    except EngineUnavailable:
        return []


def peek_with_refusals(charges: Sequence[Charge]) -> CounterRefusals | None:
    """Return the verdicts and the rejections of all callers, read at once; `None` if the engine cannot do that.

    Raises EngineUnavailable.
    """
    read: Callable[[Sequence[Charge]], CounterRefusals] | None = getattr(get_engine(), "peek_at_caller", None)
    if read is None:
        return None
    denials.send()  # send this process's own counts first
    return read(charges)


def tiers_seen(digest: str, peeked: CounterRefusals | None) -> dict[str, str]:
    """Return the tier that a caller had at the last rejection by each rule, by rule; "" = none."""
    return {row.rule: row.tier for row in reversed(_recent(peeked)) if row.partition == digest}


def _recent(peeked: CounterRefusals | None) -> list[Any]:
    """Return the rejections of all callers. peeked: if they were read already; `None` = not yet."""
    if peeked is not None:
        return peeked.refusals
    recent: Any = getattr(get_engine(), "recent_refusals", None)
    if recent is None:
        return []
    try:
        return list(recent(MAX_READ))
    except EngineUnavailable:
        return []


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)
