"""One call as local decisions need it, and the verdicts on charges that were decided here."""

from __future__ import annotations

from collections.abc import Sequence

from ..base import Verdict
from ..call import Answer, Call, CallTemplate, CounterStates
from ..usage import COUNTER, joined, lines_of
from .counter import CounterState, LocalCounter, LocalVerdict
from .rejections import CachedRejection

#: What decides a charge; `None` = the engine.
Source = LocalCounter | CachedRejection | None


class CallShape:
    """What all calls of one template have in common."""

    __slots__ = ("field", "is_local", "lines", "terms", "usual")

    def __init__(self, template: CallTemplate) -> None:
        #: The charges, without their keys.
        self.terms = [each.charge for each in template.templates]
        #: The label of usage of each charge, as a line.
        self.lines = lines_of(self.terms)
        #: The field that counts a call if all of these charges are allowed; empty if nothing is counted.
        self.field = joined(self.lines, "a" * len(self.terms), template.so_far)
        kinds = {each.sync_interval and each.sync_interval > 0 for each in self.terms}
        #: True if all charges are purely local.
        self.is_local = kinds == {False}
        is_usual = kinds in ({True}, {False}) and all(
            each.cost and each.limit.soft_quota is None for each in self.terms
        )
        #: Quota and cost of each charge, if local counters decide all of them, and the quotas have no soft ones.
        self.usual = [(each.limit.quota, each.cost) for each in self.terms] if is_usual else []


class LocalCall:
    """One call, with the names of its counters. shape, terms: of its template."""

    __slots__ = ("call", "names", "shape", "terms")

    def __init__(self, call: Call) -> None:
        self.call, template = call, call.template
        self.shape: CallShape = template.kept.get(CallShape) or template.kept.setdefault(CallShape, CallShape(template))
        self.terms = self.shape.terms
        self.names = call.names()

    def usage_field(
        self, places: Sequence[int], states: Sequence[CounterState], rejected: bool, so_far: str = ""
    ) -> str:
        """Return the field that counts these charges of a call, see `usage`; empty if none is counted.

        states: the results for all charges. rejected: the call is rejected.
        """
        letters, names = "", ""
        for place in places:
            _, left, wait, _, _ = states[place]
            if wait > 0 or wait == -1:
                letters += "d"
                names += COUNTER + self.names[place]
            else:
                is_soft = not rejected and left < self.terms[place].limit.terms.soft_floor
                letters += "s" if is_soft else "a"
        field = joined([self.shape.lines[place] for place in places], letters, so_far or self.call.template.so_far)
        return field and field + names


class LocalAnswer(Answer):
    """Verdicts on a call, some of which were decided here. is_local: all were."""

    __slots__ = ("_sources", "_syncs", "is_local")

    def __init__(self, charges: Call, states: CounterStates, sources: Sequence[Source]) -> None:
        self.charges, self.states, self._sources = charges, states, sources
        self.binding = states.binding(charges.template.gates) if any(states[2]) else None
        self.is_rejected = self.binding is not None
        self._verdicts, self.is_local = None, None not in sources
        self._syncs = [0 if source is None else source.syncs for source in sources]

    def _make(self, *, spending: bool = True) -> list[Verdict]:
        """Those that were decided here know their counter, and how often it was synced by then."""
        verdicts = super()._make(spending=spending)
        for place, source in enumerate(self._sources):
            if source is not None:
                counter = source if type(source) is LocalCounter else None
                verdicts[place] = LocalVerdict.of(verdicts[place], counter, self._syncs[place])
        return verdicts


def answer(call: LocalCall, states: Sequence[CounterState], sources: Sequence[Source]) -> Answer:
    """Return the answer to a call from the result for each charge. sources: what has decided each."""
    if not states:
        return Answer(call.call, (0,))
    times, remaining, waits, resets, ahead = zip(*states, strict=True)
    leads = [at_us - times[0] + lead for at_us, lead in zip(times, ahead, strict=True)]
    merged = CounterStates(times[0], remaining, waits, resets, leads)
    return LocalAnswer(call.call, merged, sources) if any(sources) else Answer.of(call.call, merged)


def states_of(answer: Answer) -> list[CounterState]:
    """Return an engine's result for each charge."""
    at_us, *parts = answer.states
    return [CounterState(at_us, *each) for each in zip(*parts, strict=True)]
