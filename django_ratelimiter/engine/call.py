"""Templates of calls: the common part for all callers with the same limits is made once; a request fills in its values.

An engine may have a fast path for filled charges. For other engines they are a sequence of charges, and the
verdicts are a sequence of verdicts. Both are created when one is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Final, NamedTuple, overload

from .base import Charge, Verdict

_new = tuple.__new__  # what a named tuple calls in the end

_NO_STATES: Final = "reply: must be a time, and two or four whole numbers for each charge."

#: Extract the parts of `CounterStates` from a reply: the time, then the numbers of each charge in turn.
_long_parts: Final = itemgetter(0, *[slice(start, None, 4) for start in (1, 2, 3, 4)])
_short_parts: Final = itemgetter(0, *[slice(start, None, 2) for start in (1, 2)])


def is_synced(charge: Charge) -> bool:
    """Return whether a charge may be counted locally between two calls of the engine."""
    interval, cost = charge.sync_interval, charge.cost
    return interval is not None and interval > 0 and type(cost) is int and cost >= 0 and not charge.carried


class ChargeTemplate(NamedTuple):
    """A charge without its partition, which is in the middle of its key.

    charge: without its key and its partition. is_split: callers have their own counters.
    """

    before: str
    after: str
    charge: Charge
    is_split: bool = True

    def fill(self, partition: str) -> Charge:
        """Return the charge of this partition."""
        before, after, charge, _ = self
        # [1:7] = limit to max_delay, [8:] = sync_interval and carried; the partition is between them.
        return _new(Charge, (f"{before}{partition}{after}", *charge[1:7], partition, *charge[8:]))


class CallTemplate:
    """The charges of a call without their partitions. Compared by identity, as a cache key on the request path.

    sources: which value is the partition of each charge; `None` = a different value for each. like: a template that
    differs only in its costs. gates: which of the charges may reject the call. is_fixed: their limits' terms are the
    same in each call. is_exact: none of them may be decided by local counters. sync_interval: the longest of them in
    seconds, if all charges have one; else 0. own: the places of the partitions that distinguish callers, one for each
    source. unsplit: the labels of charges whose counters all callers share. takes_leases: an allowed call may hold
    leases. is_counted: usage is counted under a label. counters: the same object in templates that differ only in
    their costs. kept: data that other modules cache for it, by module. It is freed with the template, so that deleted
    rules use no memory.
    """

    __slots__ = (
        "counters",
        "gates",
        "is_counted",
        "is_exact",
        "is_fixed",
        "kept",
        "own",
        "sync_interval",
        "takes_leases",
        "templates",
        "unsplit",
    )

    def __init__(
        self,
        templates: Sequence[ChargeTemplate],
        sources: Sequence[object] | None = None,
        like: CallTemplate | None = None,
    ) -> None:
        self.templates = tuple(templates)
        self.counters: object = object() if like is None else like.counters
        self.kept: dict[object, Any] = {}
        split = [place for place, each in enumerate(self.templates) if each.is_split]
        places = {sources[place] if sources else place: place for place in reversed(split)}
        self.own = tuple(sorted(places.values()))
        self.gates = tuple([each.charge.gating for each in self.templates])
        self.is_fixed = all(each.charge.limit.is_fixed for each in self.templates)
        self.takes_leases = any(each.charge.limit.holds_leases for each in self.templates)
        self.unsplit = frozenset([each.charge.usage for each in self.templates if not each.is_split])
        self.is_counted = any(each.charge.usage is not None for each in self.templates)
        self.is_exact = all(each.charge.sync_interval is None for each in self.templates)
        synced = all(is_synced(each.charge) for each in self.templates)
        self.sync_interval = max([each.charge.sync_interval or 0.0 for each in self.templates], default=0.0) * synced


class Call(Sequence[Charge]):
    """The charges of a template for one caller.

    partitions: one for each charge. carried: the locally counted units that each charge carries; empty = none.
    """

    __slots__ = ("_charges", "carried", "partitions", "template")

    def __init__(self, template: CallTemplate, partitions: tuple[str, ...], carried: tuple[int, ...] = ()) -> None:
        self.template, self.partitions, self.carried = template, partitions, carried
        self._charges: list[Charge] | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    def __iter__(self) -> Iterator[Charge]:
        return iter(self._charges or self._fill())

    @overload
    def __getitem__(self, place: int) -> Charge: ...
    @overload
    def __getitem__(self, place: slice) -> list[Charge]: ...
    def __getitem__(self, place: int | slice) -> Charge | list[Charge]:
        return (self._charges or self._fill())[place]

    def _fill(self) -> list[Charge]:
        charges = list(map(ChargeTemplate.fill, self.template.templates, self.partitions))
        if self.carried:
            charges = [charge._replace(carried=units) for charge, units in zip(charges, self.carried, strict=True)]
        self._charges = charges
        return charges


class CounterStates(NamedTuple):
    """The engine's result for one call, in microseconds and units, one entry for each charge.

    waits: 0 = allowed, -1 = never allowed, below -1 = allowed with a delay of -1 - wait, above 0 = allowed after
    that time. leads: how far the counters' clocks are ahead of the engine's, which is at_us.
    """

    at_us: int
    remaining: Sequence[int]
    waits: Sequence[int]
    resets: Sequence[int]
    leads: Sequence[int]

    def binding(self, gates: Sequence[bool]) -> int | None:
        """Return the place of the charge that rejects the call; `None` = none does.

        If several do: one that is never allowed, else the one with the longest wait. gates: which may reject the call.
        """
        waits = self.waits
        if (longest := max(waits)) > 0 <= min(waits) and gates[place := waits.index(longest)]:  # the common case
            return place
        told = [(inf if wait == -1 else wait) if gate else 0 for wait, gate in zip(waits, gates, strict=True)]
        return told.index(most) if (most := max(told)) > 0 else None


def states_of(reply: Sequence[int], charges: int) -> CounterStates:
    """Return the data of a reply for this number of charges. Raises ValueError for any other reply.

    reply: the engine's time, then the fields of `CounterStates` for each charge; without waits and leads if all are 0.
    """
    if len(reply) == 1 + 2 * charges:
        at_us, remaining, resets = _short_parts(reply)
        zeros = (0,) * charges
        return _new(CounterStates, (at_us, remaining, zeros, resets, zeros))
    if len(reply) == 1 + 4 * charges:
        return _new(CounterStates, _long_parts(reply))
    raise ValueError(_NO_STATES)


class Answer(Sequence[Verdict]):
    """The engine's verdicts on filled charges. is_made: a verdict was read.

    is_rejected: nothing was charged. binding: the place of the charge that rejects, see `CounterStates`; `None` = none.
    reply: see `states_of`. Raises ValueError for any other reply.
    """

    __slots__ = ("_verdicts", "binding", "charges", "is_made", "is_rejected", "states")

    #: True if this process has decided itself.
    is_local = False

    def __init__(self, charges: Call, reply: Sequence[int]) -> None:
        try:
            total = sum(reply)  # the fastest way to look at the type of each
        except TypeError:
            total = None
        if type(total) is not int:
            raise ValueError("reply: must be whole numbers.")
        self.charges, number = charges, len(charges.partitions)
        if len(reply) == 1 + 2 * number:  # the common case: all are allowed at once
            zeros = (0,) * number
            self.states = _new(CounterStates, (reply[0], reply[1::2], zeros, reply[2::2], zeros))
            self.binding, self.is_rejected = None, False
        else:
            if len(reply) != 1 + 4 * number:
                raise ValueError(_NO_STATES)
            self.states = states = _new(CounterStates, _long_parts(reply))
            self.binding = binding = states.binding(charges.template.gates) if any(states[2]) else None
            self.is_rejected = binding is not None
        self._verdicts: list[Verdict] | None = None
        self.is_made = False

    @classmethod
    def of(cls, charges: Call, states: CounterStates) -> Answer:
        """Return the verdicts from the result of an engine in this process."""
        verdicts = object.__new__(cls)
        verdicts.charges, verdicts.states = charges, states
        verdicts.binding = states.binding(charges.template.gates) if any(states.waits) else None
        verdicts.is_rejected = verdicts.binding is not None
        verdicts._verdicts, verdicts.is_made = None, False
        return verdicts

    def lengthen(self, least: Sequence[int]) -> None:
        """Raise the wait of rejected callers to at least these microseconds, one entry for each charge."""
        waits = [max(wait, each) if wait > 0 else wait for wait, each in zip(self.states.waits, least, strict=True)]
        self.states = states = self.states._replace(waits=waits)
        self.binding = states.binding(self.charges.template.gates)

    @property
    def retry_after(self) -> float | None:
        """Return the seconds until all charges that may reject the call would be allowed, 0 = now; `None` = never."""
        wait = 0 if self.binding is None else self.states.waits[self.binding]
        return None if wait < 0 else wait / 1_000_000

    def __len__(self) -> int:
        return len(self.charges.partitions)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self._verdicts or self._make())

    @overload
    def __getitem__(self, place: int) -> Verdict: ...
    @overload
    def __getitem__(self, place: slice) -> list[Verdict]: ...
    def __getitem__(self, place: int | slice) -> Verdict | list[Verdict]:
        return (self._verdicts or self._make())[place]

    def _make(self) -> list[Verdict]:
        self._verdicts = verdicts_from(self.charges, self.states, rejected=self.is_rejected)
        self.is_made = True
        return self._verdicts


def verdicts_from(
    charges: Sequence[Charge], states: CounterStates, *, rejected: bool, spending: bool = True
) -> list[Verdict]:
    """Return the verdicts, in the order of the charges. spending: the call was not a peek."""
    at, verdicts = states.at_us, []
    for charge, remaining, wait, reset, lead in zip(charges, *states[1:], strict=True):
        limit, cost, delay = charge.limit, charge.cost, 0.0
        allowed = wait == 0
        if wait < -1:
            allowed, wait, delay = True, 0, (-1 - wait) / 1_000_000
        charged = allowed and not rejected
        soft = charged and (remaining if spending else remaining - cost) < limit.terms.soft_floor
        if limit.holds and charge.max_delay is not None and reset - lead > limit.terms_at(0, charge.max_delay).extra:
            remaining = 0
        verdicts.append(
            Verdict(
                allowed,
                remaining,
                None if wait < 0 else wait / 1_000_000,
                reset / 1_000_000,
                delay,
                soft,
                at,
                charge,
                cost if charged and spending else 0,
                at + lead,
            )
        )
    return verdicts


def is_from_engine(verdicts: Sequence[Verdict]) -> bool:
    """Return whether these verdicts come from the engine, and not from this process."""
    is_local: bool | None = getattr(verdicts, "is_local", None)
    if is_local is not None:
        return not is_local
    return not verdicts or type(verdicts[0]) is Verdict
