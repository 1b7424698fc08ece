"""One shape of a call: a template with the common part of the charges, and the partitions of one caller.

A template is made once for all callers with the same limits. Charges that come in a list get one as well, at the edge
of each engine: see `Call.of`. For engines of a project, a call is a sequence of charges, and an answer is a sequence of
verdicts. Both are created when one is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from operator import itemgetter
from typing import Any, Final, NamedTuple, overload

from .base import Charge, Counted, Verdict, check_units
from .shapes import InSteps, LocalTerms, Packed

_new = tuple.__new__  # what a named tuple calls in the end

_NO_STATES: Final = "reply: must be a time, and two or four whole numbers for each charge."

#: Extract the parts of `CounterStates` from a reply with all numbers: the time, then those of each charge in turn.
_parts: Final = itemgetter(0, *[slice(start, None, 4) for start in (1, 2, 3, 4)])

#: The beginning of the label that a kind of callers is counted under, over all rules; no slug begins with it.
OVER_ALL_RULES: Final = "*"

#: Maximum number of parts of a template that are kept.
MAX_PARTS: Final = 100


class ChargeTemplate(NamedTuple):
    """A charge without its partition, which is in the middle of its key.

    charge: without its key and its partition. is_split: callers have their own counters.
    is_named: False = what is filled in is no partition but a whole key; the charge has its partition already.
    identity: the kind of callers that its partition distinguishes, whose requests are counted over all charges of a
    call; "" = they are not.
    """

    before: str
    after: str
    charge: Charge
    is_split: bool = True
    is_named: bool = True
    identity: str = ""

    def fill(self, partition: str) -> Charge:
        """Return the charge of this partition."""
        before, after, charge, _, is_named, _ = self
        # [1:7] = limit to max_delay, [8:] = sync_interval; the partition is between them.
        own = partition if is_named else charge[7]
        return _new(Charge, (f"{before}{partition}{after}", *charge[1:7], own, *charge[8:]))


class CallTemplate:
    """The charges of a call without their partitions. Compared by identity, as a cache key on the request path.

    charges: without keys, too. sources: which value is the partition of each; `None` = a different value for each.
    like: a template that differs only in its costs. is_filled: its calls are made from it, for partitions that are
    digests; False = their charges came in a list.
    gates: which of the charges may reject the call.
    pools: for each identity, the label that its callers are counted under over all rules, the place of its first
    charge, and the numbers, from 1, of those that may reject.
    takes_leases: an allowed call may hold leases. is_counted: usage is counted under a label. counts_callers: and each
    caller under some. names: the beginning and
    the end of each counter's name. counters: the same object in templates that differ only in their costs.
    local, packed, in_steps: see `shapes`; extras: see `usage`; `None` = it was not needed yet.

    Raises ValueError if the units of a charge are not whole numbers, if its label has several lines, or if two charges
    use one counter.
    """

    __slots__ = (
        "_parts",
        "charges",
        "counters",
        "counts_callers",
        "extras",
        "gates",
        "in_steps",
        "is_counted",
        "is_filled",
        "local",
        "names",
        "packed",
        "pools",
        "takes_leases",
        "templates",
    )

    def __init__(
        self,
        templates: Sequence[ChargeTemplate],
        sources: Sequence[object] | None = None,
        like: CallTemplate | None = None,
        *,
        is_filled: bool = True,
    ) -> None:
        self.templates: tuple[ChargeTemplate, ...] = tuple(templates)
        self.counters: object = object() if like is None else like.counters
        self.is_filled: bool = is_filled
        self.charges: list[Charge] = [each.charge for each in self.templates]
        for charge in self.charges:
            check_units(charge)
            if charge.usage is not None and not {"\n", "\v"}.isdisjoint(charge.usage):
                raise ValueError("usage: a label is one line of text.")
        self.names: list[tuple[str, str]] = [(each.before, each.after + each.charge.limit.tag) for each in templates]
        if is_filled:
            _check_names([f"{before} {after}" for before, after in self.names])
        self.gates: tuple[bool, ...] = tuple([charge.gating for charge in self.charges])
        self.takes_leases: bool = any(charge.limit.holds_leases for charge in self.charges)
        self.is_counted: bool = any(charge.usage is not None for charge in self.charges)
        self.counts_callers: bool = any(charge.usage is not None and charge.exact for charge in self.charges)
        pools: dict[str, list[int]] = {}
        for number, each in enumerate(self.templates, 1):
            if each.identity and each.charge.usage is not None:
                pools.setdefault(each.identity, []).append(number)
        gating = [number for number, gates in enumerate(self.gates, 1) if gates]
        self.pools: list[tuple[str, int, list[int]]] = [
            (OVER_ALL_RULES + identity, numbers[0] - 1, gating) for identity, numbers in pools.items()
        ]
        self.local: LocalTerms = LocalTerms(self.charges, [each.is_split for each in self.templates], sources)
        self.in_steps: list[InSteps] | None = None
        self.packed: Packed | None = None
        self.extras: list[Any] | None = None
        self._parts: dict[tuple[int, ...], CallTemplate] = {}

    def part(self, places: Sequence[int]) -> CallTemplate:
        """Return the template with only these places."""
        if len(places) == len(self.templates):
            return self
        part = self._parts.get(key := tuple(places))
        if part is None:
            if len(self._parts) >= MAX_PARTS:
                self._parts.clear()
            templates = [self.templates[place] for place in places]
            part = self._parts[key] = CallTemplate(templates, is_filled=self.is_filled)
        return part


class Call(Sequence[Charge]):
    """The charges of a template for one caller.

    partitions: one for each charge. is_reported: the call sends a note of its partitions, see `partition_notes`.
    wants: for each charge, the units to charge in advance, beyond the cost, if the call is allowed: at most an eighth
    of what is left then, and none beyond the soft quota; empty = none. `Answer.taken` says how many these were.
    returned: receipts for units that are given back before the call is decided, whatever the decision is.
    so_far: the charges of earlier calls for the same request, as they were counted.
    settled: more units that requests allowed before have cost, by label. noted: the labels and partitions that earlier
    calls have noted as allowed, for the top callers.
    """

    __slots__ = ("_charges", "is_reported", "noted", "partitions", "returned", "settled", "so_far", "template", "wants")

    def __init__(
        self,
        template: CallTemplate,
        partitions: tuple[str, ...],
        wants: tuple[int, ...] = (),
        returned: tuple[Verdict, ...] = (),
        so_far: tuple[Counted, ...] = (),
    ) -> None:
        self.template: CallTemplate = template
        self.partitions: tuple[str, ...] = partitions
        self.wants: tuple[int, ...] = wants
        self.returned: tuple[Verdict, ...] = returned
        self.so_far: tuple[Counted, ...] = so_far
        self.settled: dict[str, int] | None = None
        self.noted: tuple[tuple[str, str], ...] = ()
        self._charges: list[Charge] | None = None
        self.is_reported: bool = False

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> Call:
        """Return these charges as a call; itself if it is one.

        Raises ValueError if units are not whole numbers, or two charges use one counter.
        """
        if type(charges) is cls:
            return charges
        charges = [*charges]
        terms: list[tuple[Any, ...]] = []
        partitions: list[str] = []
        for charge in charges:
            key, cost, partition = charge[0], charge[2], charge[7]
            if type(cost) is not int or cost < 0:
                check_units(charge)
            if partition and partition in key:
                before, key, after = key.partition(partition)
                terms.append((*charge[1:7], None, *charge[8:], before, after))
            else:
                terms.append(charge[1:])
            partitions.append(key)
        call = cls(_template_of(tuple(terms)), tuple(partitions))
        call._charges = charges
        if len(charges) > 1:
            _check_names(call.names())
        return call

    def names(self) -> list[str]:
        """Return the name of each counter: the key of its charge, and the tag of its limit."""
        names, partitions = self.template.names, self.partitions
        return [f"{before}{partitions[place]}{after}" for place, (before, after) in enumerate(names)]

    def part(self, places: Sequence[int], returned: Sequence[Verdict] = ()) -> Call:
        """Return the call of the charges at these places, which gives these receipts back."""
        wants = tuple([self.wants[place] for place in places if self.wants])
        partitions = tuple([self.partitions[place] for place in places])
        return Call(self.template.part(places), partitions, wants if any(wants) else (), tuple(returned), self.so_far)

    def fetching(self, wants: Sequence[int], returned: Sequence[Verdict] = ()) -> Call:
        """Return this call with units that it wants, and receipts that it gives back."""
        call = Call(self.template, self.partitions, tuple(wants) if any(wants) else (), tuple(returned), self.so_far)
        call._charges, call.settled, call.noted = self._charges, self.settled, self.noted
        return call

    def continuing(self, so_far: tuple[Counted, ...], noted: tuple[tuple[str, str], ...] = ()) -> Call:
        """Return the call as one for a request that was counted and noted like this so far."""
        if not (so_far and self.partitions):
            return self
        call = Call(self.template, self.partitions, self.wants, self.returned, so_far)
        call.noted = noted
        return call

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
        self._charges = charges = list(map(ChargeTemplate.fill, self.template.templates, self.partitions))
        return charges


def _check_names(names: list[str]) -> None:
    """Raise ValueError if two counters of a call have the same name."""
    if len(set(names)) < len(names):
        raise ValueError("charges: the same key and limit occur twice in one call; add up their costs instead.")


@lru_cache(maxsize=500)
def _template_of(terms: tuple[Any, ...]) -> CallTemplate:
    """Return the template of charges in a list.

    terms: of each, from its limit on; then what is before and after the partition in its key, if
    the key contains it.
    """
    templates = []
    for term in terms:
        before, after = term[10:] or ("", "")
        is_named = len(term) > 10
        templates.append(ChargeTemplate(before, after, Charge("", *term[:10]), term[6] != "", is_named))
    return CallTemplate(templates, is_filled=False)


#: A call without charges: only for a version, a refund, or usage.
NO_CHARGES: Final = Call.of(())


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


class Answer(Sequence[Verdict]):
    """The engine's verdicts on a call.

    is_rejected: nothing was charged. binding: the place of the charge that rejects, see `CounterStates`; `None` = none.
    taken: the units that were charged in advance, for each charge of a call that wants some; `None` = it does not, or
    the engine does not do this.
    reply: the engine's time, then the fields of `CounterStates` for each charge; without waits and leads if all are 0.
    If the call wants units, those taken are the last numbers. Raises ValueError for any other reply.
    """

    __slots__ = ("_verdicts", "binding", "charges", "is_rejected", "states", "taken")

    #: True if this process has decided itself.
    is_local = False

    def __init__(self, charges: Call, reply: Sequence[int]) -> None:
        try:
            total = sum(reply)  # the fastest way to look at the type of each
        except TypeError:
            total = None
        if type(total) is not int:
            raise ValueError("reply: must be whole numbers.")
        self.charges: Call = charges
        number = len(charges.partitions)
        self.taken: Sequence[int] | None = None
        if charges.wants:
            self.taken, reply = reply[-number:], reply[:-number]
        if len(reply) == 1 + 2 * number:  # the common case: all are allowed at once
            zeros = (0,) * number
            self.states: CounterStates = _new(CounterStates, (reply[0], reply[1::2], zeros, reply[2::2], zeros))
            self.binding: int | None = None
            self.is_rejected: bool = False
        else:
            if len(reply) != 1 + 4 * number:
                raise ValueError(_NO_STATES)
            self.states = states = _new(CounterStates, _parts(reply))
            self.binding = states.binding(charges.template.gates)
            self.is_rejected = self.binding is not None
        self._verdicts: list[Verdict] | None = None

    @classmethod
    def of(
        cls,
        charges: Call,
        states: CounterStates,
        verdicts: list[Verdict] | None = None,
        taken: Sequence[int] | None = None,
    ) -> Answer:
        """Return the answer of these states, which did not come in one reply. verdicts: those that exist already."""
        answer = object.__new__(cls)
        answer.charges, answer.states, answer.taken = charges, states, taken
        answer.binding = states.binding(charges.template.gates) if any(states.waits) else None
        answer.is_rejected = answer.binding is not None
        answer._verdicts = verdicts
        return answer

    @classmethod
    def joined(cls, call: Call, parts: Iterable[tuple[Sequence[int], Answer]]) -> Answer:
        """Return the answer to a call from the answers to its parts, each with the places of its charges."""
        placed = {
            place: (verdict, verdict.remaining, *rest, answer.states.at_us, answer.taken[number] if answer.taken else 0)
            for places, answer in parts
            for number, (place, verdict, *rest) in enumerate(zip(places, answer, *answer.states[2:], strict=True))
        }
        columns = zip(*[placed[place] for place in range(len(call))], strict=True)
        verdicts, remaining, waits, resets, ahead, times, taken = columns
        leads = [lead + at_us - times[0] for lead, at_us in zip(ahead, times, strict=True)]
        states = CounterStates(times[0], remaining, waits, resets, leads)
        return cls.of(call, states, [*verdicts], taken if call.wants else None)

    def spend_taken(self) -> None:
        """Let the verdicts give back also what was taken in advance."""
        for verdict, units in zip(self, self.taken or (), strict=False):
            verdict.spent += units
        self.taken = None if self.taken is None else (0,) * len(self.taken)

    def reject(self) -> None:
        """Record that the call was rejected already. Do so before a verdict is read."""
        self.is_rejected = True

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

    def listed(self) -> list[Verdict]:
        """Return the verdicts, in the order of the charges."""
        return self._verdicts or self._make()

    def peeked(self) -> list[Verdict]:
        """Return the verdicts of a peek: nothing was charged."""
        return self._make(spending=False)

    def _make(self, *, spending: bool = True) -> list[Verdict]:
        rejected, verdicts = self.is_rejected, []
        at, remains, waits, resets, leads = self.states
        for place, charge in enumerate(self.charges):  # not by `zip`, which takes longer to begin
            remaining, wait, reset, lead = remains[place], waits[place], resets[place], leads[place]
            limit, cost, delay = charge.limit, charge.cost, 0.0
            allowed = wait == 0
            if wait < -1:
                allowed, wait, delay = True, 0, (-1 - wait) / 1_000_000
            charged = allowed and not rejected
            soft = charged and (remaining if spending else remaining - cost) < limit.terms.soft_floor
            if (
                limit.holds
                and charge.max_delay is not None
                and reset - lead > limit.terms_at(0, charge.max_delay).extra
            ):
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
        self._verdicts = verdicts
        return verdicts


class LocalAnswer(Answer):
    """Verdicts on a call that this process has decided itself."""

    __slots__ = ()

    is_local = True


def is_from_engine(verdicts: Sequence[Verdict]) -> bool:
    """Return whether a project's engine gave these verdicts, and not counters of this process behind it."""
    return not verdicts or type(verdicts[0]) is Verdict
