"""What the parts of the engine work out once for all calls of a template; each has one attribute of `CallTemplate`.

It is freed with the template, so that deleted rules use no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .algorithms import ALLOW, STEPS, Allow, Steps
from .base import Charge, Version
from .limits import Terms

#: A charge for MemoryEngine: start and end of its counter's name, the charge, the steps of its algorithm, its limit's
#: terms, and its `Allow`. Terms of `None` depend on the time; without an `Allow` it must be decided step by step.
InSteps = tuple[str, str, Charge, Steps, Terms | None, Allow | None]


def in_steps(name: tuple[str, str], charge: Charge) -> InSteps:
    """Return a charge for MemoryEngine. name: the start and the end of its counter's name."""
    limit, steps = charge.limit, STEPS[charge.limit.algorithm]
    allow = ALLOW[limit.algorithm] if limit.is_fixed and charge.cost else None
    return *name, charge, steps, limit.terms if limit.is_fixed else None, allow


class LocalTerms:
    """What a process may decide by itself.

    sources: which value is the partition of each charge; `None` = a different value for each. is_split: callers have
    their own counters.
    is_exact: nothing; the engine decides all charges each time. is_fetched: units for all of them may be fetched in
    advance. interval: for how long, in seconds; 0 = none are. callers: the places of the partitions that distinguish
    callers of such charges, one for each source; else that of one which all callers share. alone: the places of
    charges that each process decides alone. counted: the field that counts a call if all its charges are allowed;
    `None` = it was not needed yet.
    """

    __slots__ = ("alone", "callers", "counted", "interval", "is_exact", "is_fetched")

    def __init__(self, charges: Sequence[Charge], is_split: Sequence[bool], sources: Sequence[object] | None) -> None:
        intervals = [charge.sync_interval or 0.0 for charge in charges]
        fetched = [place for place, each in enumerate(charges) if intervals[place] > 0 and each.may_be_fetched]
        own = [place for place in fetched if is_split[place]] or fetched[:1]
        places = {sources[place] if sources else place: place for place in reversed(own)}
        self.is_exact: bool = all(charge.sync_interval is None for charge in charges)
        self.is_fetched: bool = 0 < len(fetched) == len(charges)
        self.interval: float = min([intervals[place] for place in fetched], default=0.0)
        self.callers: tuple[int, ...] = tuple(sorted(places.values()))
        self.alone: tuple[int, ...] = tuple([place for place, interval in enumerate(intervals) if interval < 0])
        self.counted: str | None = None


@dataclass(slots=True, eq=False)
class CallFormat:
    """A packed call with holes, for one minute and version.

    parts: what is sent, with a character for each byte; every second one is filled. size: of the filled call, without
    the partitions of its notes and lines. noted: the places of the charges whose partitions are repeated in notes.
    flags: of each charge, if calls want units; else empty. lines: usage that names callers, the field of the call
    first: its length without the callers, and their places. varies: there are flags or lines.
    """

    minute: int
    version: int | Version | None
    parts: list[str]
    size: int
    noted: tuple[int, ...]
    flags: tuple[int, ...]
    lines: tuple[tuple[int, Sequence[int]], ...]
    varies: bool


@dataclass(slots=True, eq=False)
class Packed:
    """Calls as they are sent to Redis.

    records: of all charges; empty if their limits' terms differ from call to call. field: counts a call if all its
    charges are allowed. formats: by the engine that has packed them, and what its calls contain.
    """

    records: bytes
    field: bytes
    formats: dict[object, CallFormat]
