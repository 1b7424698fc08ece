"""The charges of one call as local decisions need them, and the verdicts on charges that were decided here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..base import Charge, Verdict, check_units
from ..call import Answer, Call, CallTemplate, CounterStates, verdicts_from
from ..usage import COUNTER, labels_of, lines_of
from .counter import CounterState, LocalCounter, LocalVerdict, partition_of
from .rejections import CachedRejection

_new = tuple.__new__  # what a named tuple calls in the end

#: What decides a charge; `None` = the engine.
Source = LocalCounter | CachedRejection | None


class CallShape:
    """What all calls of one template have in common."""

    __slots__ = ("_parts", "_template", "charges", "field", "is_local", "labels", "names", "usual")

    def __init__(self, template: CallTemplate) -> None:
        #: The charges, without their keys.
        self.charges = [each.charge for each in template.templates]
        for charge in self.charges:
            check_units(charge)
        #: The name of each counter, before and after the partition.
        self.names = [(each.before, each.after + each.charge.limit.tag) for each in template.templates]
        #: The labels of usage, one line for each charge; empty if nothing is counted.
        self.labels = labels_of(lines_of(self.charges))
        #: The field that counts a call if all of these charges are allowed.
        self.field = f"{self.labels}\n{'a' * len(self.charges)}" if self.labels else ""
        kinds = {each.sync_interval and each.sync_interval > 0 for each in self.charges}
        #: True if all charges are purely local.
        self.is_local = kinds == {False}
        is_usual = kinds in ({True}, {False}) and all(
            each.cost and not each.carried and each.limit.soft_quota is None for each in self.charges
        )
        #: Quota and cost of each charge, if local counters decide all of them, and the quotas have no soft ones.
        self.usual = [(each.limit.quota, each.cost) for each in self.charges] if is_usual else []
        self._template = template
        self._parts: dict[tuple[tuple[int, ...], tuple[int, ...]], CallTemplate] = {}

    def part(self, places: Sequence[int], uncounted: Sequence[int]) -> CallTemplate:
        """Return the template with only these places, some of which are not counted."""
        if len(places) == len(self.charges) and not uncounted:
            return self._template
        part = self._parts.get(key := (tuple(places), tuple(uncounted)))
        if part is None:
            templates = [(place, self._template.templates[place]) for place in places]
            part = self._parts[key] = CallTemplate(
                [
                    each._replace(charge=each.charge._replace(usage=None)) if place in uncounted else each
                    for place, each in templates
                ]
            )
        return part


class LocalCall:
    """The charges of one call, with the names of their counters.

    charges: as they were given. terms: the same; without keys if they come from a template. shape: of the template.
    """

    __slots__ = ("charges", "names", "partitions", "shape", "terms")

    def __init__(self, charges: Sequence[Charge]) -> None:
        """Raises ValueError if two charges use one counter, or units are not whole numbers."""
        self.charges = charges
        self.shape: CallShape | None = None
        if type(charges) is Call:
            template = charges.template
            shape = self.shape = template.kept.get(CallShape) or _shape_of(template)
            self.terms: Sequence[Charge] = shape.charges
            self.partitions: Sequence[str] = charges.partitions
            parts = zip(shape.names, charges.partitions, strict=True)
            self.names = [before + partition + after for (before, after), partition in parts]
            return
        for charge in charges:
            check_units(charge)
        self.terms, self.partitions = charges, [*map(partition_of, charges)]
        self.names = [charge.key + charge.limit.tag for charge in charges]
        if len(charges) > 1 and len(set(self.names)) < len(charges):
            raise ValueError("charges: the same key and limit occur twice in one call; add up their costs instead.")

    def part(
        self, places: Sequence[int], uncounted: Sequence[int] = (), carried: dict[int, int] | None = None
    ) -> Iterable[Charge]:
        """Return the charges at these places, for the engine.

        uncounted: the places whose usage it must not count. carried: the units that they carry, by place.
        """
        filled = self.charges
        if self.shape is not None and type(filled) is Call and places:
            template = self.shape.part(places, uncounted)
            if template is filled.template and not carried:
                return filled
            units = tuple([carried.get(place, 0) for place in places]) if carried else ()
            return Call(template, tuple([filled.partitions[place] for place in places]), units)
        part = []
        for place in places:
            charge = filled[place]._replace(usage=None) if place in uncounted else filled[place]
            part.append(charge._replace(carried=carried[place]) if carried and place in carried else charge)
        return part

    @property
    def callers(self) -> list[str]:
        """The partitions that distinguish callers of synced rules; else that of a counter which all callers share."""
        synced = [place for place, charge in enumerate(self.terms) if (charge.sync_interval or 0.0) > 0]
        if type(self.charges) is Call:
            split = [place for place in synced if self.charges.template.templates[place].is_split]
        else:
            split = [place for place in synced if self.partitions[place]]
        return [self.partitions[place] for place in split or synced[:1]]

    def usage_field(self, places: Sequence[int], states: Sequence[CounterState], *, rejected: bool) -> str:
        """Return the field that counts these charges of a call, see `usage`; empty if none is counted.

        states: the results for all charges. rejected: the call is rejected.
        """
        if self.shape is not None and len(places) == len(self.terms):
            labels = self.shape.labels
        else:
            labels = labels_of(lines_of([self.terms[place] for place in places]))
        if not labels:
            return ""
        letters, names = "", ""
        for place in places:
            _, left, wait, _, _ = states[place]
            if wait > 0 or wait == -1:
                letters += "d"
                names += COUNTER + self.names[place]
            else:
                limit = self.terms[place].limit
                letters += (
                    "s" if limit.soft_quota is not None and not rejected and left < limit.terms.soft_floor else "a"
                )
        return f"{labels}\n{letters}{names}"


def _shape_of(template: CallTemplate) -> CallShape:
    shape = template.kept[CallShape] = CallShape(template)
    return shape


class LocalVerdicts(Answer):
    """Verdicts on filled charges, some of which were decided here. is_local: all were."""

    __slots__ = ("_sources", "_syncs", "is_local")

    def __init__(self, charges: Call, states: CounterStates, sources: Sequence[Source]) -> None:
        self.charges, self.states, self._sources = charges, states, sources
        self.binding = states.binding(charges.template.gates) if any(states[2]) else None
        self.is_rejected = self.binding is not None
        self._verdicts, self.is_made = None, False
        self.is_local = None not in sources
        self._syncs = [0 if source is None else source.syncs for source in sources]

    def _make(self) -> list[Verdict]:
        verdicts = verdicts_from(self.charges, self.states, rejected=self.is_rejected)
        self._verdicts = own_verdicts(verdicts, self._sources, self._syncs)
        self.is_made = True
        return self._verdicts


def own_verdicts(verdicts: list[Verdict], sources: Sequence[Source], syncs: Sequence[int]) -> list[Verdict]:
    """Return these verdicts; those that were decided here know their counter, and how often it was synced by then."""
    for place, source in enumerate(sources):
        if source is not None:
            counter = source if type(source) is LocalCounter else None
            verdicts[place] = LocalVerdict.of(verdicts[place], counter, syncs[place])
    return verdicts


def answer(call: LocalCall, states: Sequence[CounterState], sources: Sequence[Source]) -> Sequence[Verdict]:
    """Return the verdicts on a call from the result for each charge. sources: what has decided each."""
    if not states:
        return []
    first_us, charges = states[0][0], call.charges
    remaining, waits, resets, leads = [], [], [], []
    for at_us, left, wait, reset, lead in states:
        remaining.append(left)
        waits.append(wait)
        resets.append(reset)
        leads.append(at_us - first_us + lead)
    merged: CounterStates = _new(CounterStates, (first_us, remaining, waits, resets, leads))
    if type(charges) is Call:
        return LocalVerdicts(charges, merged, sources) if any(sources) else Answer.of(charges, merged)
    rejected = any(waits) and merged.binding([charge.gating for charge in charges]) is not None
    verdicts = verdicts_from(charges, merged, rejected=rejected)
    return own_verdicts(verdicts, sources, [0 if source is None else source.syncs for source in sources])


def is_rejected(verdicts: Sequence[Verdict]) -> bool:
    """Return whether an engine's verdicts reject the call."""
    if isinstance(verdicts, Answer):
        return verdicts.is_rejected
    return any(each.charge.gating and not each.allowed for each in verdicts)


def states_of(verdicts: Sequence[Verdict]) -> list[CounterState]:
    """Return an engine's result for each charge."""
    if isinstance(verdicts, Answer):
        at_us, *parts = verdicts.states
        return [CounterState(at_us, *each) for each in zip(*parts, strict=True)]
    return [*map(_state_of, verdicts)]


def _state_of(verdict: Verdict) -> CounterState:
    if verdict.retry_after is None:
        wait = -1
    elif verdict.allowed:
        wait = -1 - round(verdict.delay * 1_000_000) if verdict.delay else 0
    else:
        wait = max(round(verdict.retry_after * 1_000_000), 1)
    reset, lead = round(verdict.reset_after * 1_000_000), verdict.spent_at_us - verdict.at_us
    return CounterState(verdict.at_us, verdict.remaining, wait, reset, lead)
