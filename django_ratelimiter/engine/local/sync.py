"""How a call is decided. Each charge has one of three outcomes:

    decided here    a local counter covers it, or it is purely local, or a rejection is remembered
    asked           the engine decides it: it is exact, or this process knows too little of its counter. If another call
                    is syncing that counter, the cost is reserved in it
    synced          the engine decides it, gets the units that were charged here, and its reply renews the counter

`decide` decides a call all of whose charges are decided here, without the engine. Everything else is a `SyncCall`.
Everything here is called under the lock of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from ..base import Charge, Verdict, Version
from ..call import NO_CHARGES, Answer, Call, CounterStates
from ..usage import UsageCarry, outcome_of
from .call import LocalAnswer, LocalCall, Source, answer, states_of
from .counter import CounterState, LocalCounter, LocalVerdict, is_local
from .rejections import CachedRejection, rejects
from .store import LocalCounters

#: Unused counters are synced with the calls of others, this many at once.
MAX_PIGGYBACKED: Final = 50

_new = tuple.__new__  # what a named tuple calls in the end

#: A call without charges.
NO_CALL: Final = LocalCall(NO_CHARGES)


def decide(
    counters: LocalCounters, call: LocalCall, version: int | Version | None, receipts: Sequence[Verdict], now: float
) -> Answer | None:
    """Return the answer if each charge can be decided here. `None` = the engine must be asked; nothing is charged."""
    terms = call.terms
    if not terms or not counters.version_state.is_current(version, now):
        return None
    if call.shape.usual and (allowed := _allow(counters, call, now)):
        return allowed
    rejected = False
    sources: list[Source] = []
    for name, charge in zip(call.names, terms, strict=True):
        source = counters.source(name, charge, version, now)
        if source is None:
            return None
        sources.append(source)
        if charge[3] and source.rejects(charge):
            rejected = True
    if receipts if rejected else CachedRejection in map(type, sources):
        return None
    states = [source.take(charge, now, rejected=rejected) for source, charge in zip(sources, terms, strict=True)]  # type: ignore[union-attr]
    if label := call.usage_field(range(len(states)), states, rejected):
        counters.usage.add(states[0].at_us, label)
    return answer(call, states, sources)


def _allow(counters: LocalCounters, call: LocalCall, now: float) -> LocalAnswer | None:
    """Allow the usual call: its local counters have room, and none is due. `None` = it must be decided in full."""
    shape = call.shape
    by_name, taken = counters.local if shape.is_local else counters.by_name, []
    for counter, (quota, cost) in zip(map(by_name.get, call.names), shape.usual, strict=True):
        if counter is None or now >= counter.due_at or now >= counter.reset_at:
            return None
        if quota > counter.known_quota or quota > counter.widest or cost > quota - counter.used:
            return None
        taken.append(counter)
    remaining, resets = [], []
    for counter, (quota, cost) in zip(taken, shape.usual, strict=True):
        used = counter.used = counter.used + cost
        counter.unsent += cost
        counter.spent_at = now
        remaining.append(quota - used)
        resets.append(int((counter.reset_at - now) * 1_000_000))
    at_us, zeros = taken[0].time_at(now), [0] * len(taken)
    if shape.field:
        counters.usage.add(at_us, shape.field)
    return LocalAnswer(call.call, _new(CounterStates, (at_us, remaining, zeros, resets, zeros)), taken)


@dataclass(slots=True, eq=False)
class SyncCall:
    """One call that cannot be decided here."""

    _counters: LocalCounters
    _call: LocalCall
    _version: int | Version | None
    _receipts: Sequence[Verdict]
    #: When it began.
    _began: float
    #: True if no charge or receipt concerns local counters.
    is_exact: bool = False
    #: True if the engine is called.
    is_made: bool = False
    #: The places of the charges that the engine decides.
    _asked: list[int] = field(default_factory=list)
    #: The local counters among them, in which their costs are reserved, by place.
    _reserved: dict[int, LocalCounter] = field(default_factory=dict)
    #: The units that are carried for those that this call syncs, by place.
    _synced: dict[int, int] = field(default_factory=dict)
    #: The names of further counters that this call syncs, with the units that are carried for them.
    _piggybacked: dict[str, tuple[LocalCounter, int]] = field(default_factory=dict)
    #: The local counters that decide the other charges, by place; and the places of those that are allowed.
    _here: dict[int, LocalCounter] = field(default_factory=dict)
    _allowed: set[int] = field(default_factory=set)
    #: True if this process rejects the call; then the engine charges nothing.
    _rejected: bool = False
    #: The receipts that this process can refund, and those that only the engine can.
    _ours: list[Verdict] = field(default_factory=list)
    _theirs: list[Verdict] = field(default_factory=list)
    #: Usage that the call carries.
    _counts: UsageCarry | None = None

    def ask_as_given(self, engine: Any) -> Any:
        """Have the engine decide everything, as if there were no local counters. Afterwards call `remember`."""
        return engine.check(self._call.call, version=self._version, refund_if_denied=self._receipts)

    def remember(self, reply: Answer, now: float) -> None:
        """Remember this reply if it is a rejection."""
        self._counters.version_state.confirm(self._version, self._began)
        if reply.is_rejected:
            self._remember(dict(enumerate(states_of(reply))), now)

    def wider(self) -> SyncCall | None:
        """Return a call for units of the same counters that were charged under a wider limit; `None` = there are none.

        The engine accepts units only up to the quota of the limit that they come with, so they are sent with their own.
        """
        wider = SyncCall(self._counters, NO_CALL, None, (), self._began)
        for name, charge in zip(self._call.names, self._call.terms, strict=True):
            counter = self._counters.by_name.get(name)
            if counter is not None and counter.widest > charge.limit.quota and self._began >= counter.due_at:
                wider._piggyback(name, counter)
        return wider if wider._piggybacked else None

    def add_piggybacked(self, *, due: bool) -> None:
        """Add unsent units of counters that are due; `due=False`: of any counter. They are dropped after the sync.

        Counters that the call charges anyway are left out.
        """
        charged = set(self._call.names)
        for name, counter in self._counters.by_name.items():
            if len(self._piggybacked) >= MAX_PIGGYBACKED:
                break
            if name not in charged and (self._began >= counter.due_at or not due):
                self._piggyback(name, counter)

    def _piggyback(self, name: str, counter: LocalCounter) -> None:
        if not counter.is_syncing and (carried := counter.unsynced(self._began)):
            counter.is_syncing = True
            self._piggybacked[name] = counter, carried

    def prepare(self) -> None:
        """Charge what is decided here, so that nobody else uses these units meanwhile, and find out what to ask.

        A call without charges only sends units and usage, or asks for the version.
        """
        counters, version = self._counters, self._version
        self._place()
        is_known = version is None or (self._call.names and counters.version_state.is_current(version, self._began))
        self._counts = counters.usage.lease()
        for receipt in self._receipts:
            if receipt.spent:
                is_here = isinstance(receipt, LocalVerdict) and (is_local(receipt.charge) or receipt.is_unsent)
                (self._ours if is_here else self._theirs).append(receipt)
        refunds, counts = self._rejected and self._theirs, self._counts and not self._call.names
        self.is_made = bool(self._asked or self._piggybacked or refunds or not is_known or counts)
        if not self.is_made:
            counters.usage.acknowledge(self._counts, done=False)
        elif version is not None:
            counters.version_state.claim(version, self._began)

    def _place(self) -> None:
        terms, here = self._call.terms, self._here
        comes_again = self._counters.comes_again(self._call.call, self._began)
        for place, (name, charge) in enumerate(zip(self._call.names, terms, strict=True)):
            counter = None
            if charge.sync_interval is not None:
                counter = self._counters.counter(name, charge, self._began)
                if counter is None:
                    self._reserve(place, name, charge, is_new=comes_again)
            if counter is None:
                self._asked.append(place)
            else:
                here[place] = counter
        self._allowed = {place for place, counter in here.items() if not counter.rejects(terms[place])}
        self._rejected = any(terms[place].gating for place in here if place not in self._allowed)
        if not self._rejected:
            for place in self._allowed:
                here[place].spend(terms[place], self._began)

    def _reserve(self, place: int, name: str, charge: Charge, *, is_new: bool) -> None:
        """Reserve the cost of a charge that the engine decides, and sync its counter, unless another call does.

        is_new: a counter is made if there is none; else, nothing is kept of such a charge.
        """
        counters, now = self._counters, self._began
        counter = counters.by_name.get(name)
        if counter is None:
            if not is_new or not self._can_make():
                return
            counter = LocalCounter(self._call.call[place])
            counters.add(name, counter)
        carried = counter.unsynced(now)
        self._reserved[place] = counter
        counter.reserve(charge.cost)
        if not counter.is_syncing and (charge.limit.quota >= counter.widest or not carried):
            counter.is_syncing = True
            self._synced[place] = carried

    def _can_make(self) -> bool:
        """Return whether a counter can be added. If all are in use, this call syncs some that may be dropped then."""
        counters = self._counters
        if counters.sweep(self._began) and counters.is_full:
            self.add_piggybacked(due=True)
        return not counters.is_full

    def send(self, engine: Any) -> Any:
        """Call the engine's `check`, and return its result. Optional arguments are passed only if they are set."""
        options: dict[str, Any] = {"reject": True} if self._rejected else {}
        if self._counts:
            options["counts"] = self._counts
        units = [self._synced.get(place, 0) for place in self._asked]
        call = self._call.call.part(self._asked, self._uncounted(), units if any(units) else ())
        if self._piggybacked:
            more = [counter.carry(units) for counter, units in self._piggybacked.values()]
            call = Call.of([*call, *more]).continuing(call.template.so_far)
        return engine.check(call, version=self._version, refund_if_denied=self._theirs, **options)

    def _uncounted(self) -> list[int]:
        """Return the places of charges that the engine must not count: this process counts calls under their label."""
        terms = self._call.terms
        labels = {terms[place].usage for place in self._here} - {None}
        return [place for place in self._asked if terms[place].usage in labels] if labels else []

    def fail(self) -> None:
        """Record that there was no reply: nothing is charged here. Carried units stay unsent: better sent twice."""
        for place, counter in self._reserved.items():
            counter.release(self._call.terms[place].cost)
            if place in self._synced:
                counter.is_syncing = False
        for counter, _ in self._piggybacked.values():
            counter.is_syncing = False
        self._refund()
        self._counters.usage.acknowledge(self._counts, done=False)

    def _refund(self) -> None:
        """Refund what this call has charged here."""
        if not self._rejected:
            for place in self._allowed:
                self._here[place].refund(self._call.terms[place].cost)

    def settle(self, reply: Answer | None, now: float) -> Answer:
        """Store the engine's reply, if there is one. Return the answer to all charges."""
        counters, terms = self._counters, self._call.terms
        rejected = self._rejected or (reply is not None and reply.is_rejected)
        if self.is_made:
            counters.version_state.confirm(self._version, self._began)
            counters.usage.acknowledge(self._counts, done=True)
        for name, (counter, carried) in self._piggybacked.items():
            counter.acknowledge(carried)
            if not (counter.unsent or counter.pending) and counters.by_name.get(name) is counter:
                counters.drop(name)
        replies = zip(self._asked, states_of(reply) if reply else (), strict=False)  # the last are of piggybacked ones
        results = {place: self._learn(place, state, now, rejected=rejected) for place, state in replies}
        if rejected:
            self._refund()
            for receipt in self._ours:
                counters.refund_here(receipt)
            self._remember(results, now)
        for place, counter in self._here.items():
            results[place] = counter.result(terms[place], now, is_allowed=place in self._allowed)
        states = [results[place] for place in range(len(terms))]
        counted = sorted([*self._here, *self._uncounted()])
        others = [place for place in self._asked if counted and place not in counted]
        so_far = outcome_of(self._call.usage_field(others, states, rejected))
        if counted and (label := self._call.usage_field(counted, states, rejected, so_far)):
            counters.usage.add(states[counted[0]].at_us, label)
        return answer(self._call, states, [self._here.get(place) for place in range(len(terms))])

    def _learn(self, place: int, state: CounterState, now: float, *, rejected: bool) -> CounterState:
        """Store the engine's result for one charge in its counter, if it has one. Return the result for the caller."""
        charge, counter = self._call.terms[place], self._reserved.get(place)
        if counter is None:
            return state
        counter.release(charge.cost)
        if place not in self._synced:
            counter.add_charged(0 if rejected or state.is_rejected else charge.cost, state.at_us)
            return state
        counter.renew(charge, state, self._synced[place], self._began, now)
        if state.wait <= 0:
            return state
        return state._replace(wait=max(state.wait, ceil((counter.due_at - now) * 1_000_000)))  # no call before that

    def _remember(self, results: Mapping[int, CounterState], now: float) -> None:
        """Remember the engine's results for exact charges of a rejected call, if the rejection holds for a while."""
        names, terms = self._call.names, self._call.terms
        exact = [(names[place], terms[place], state) for place, state in results.items()]
        exact = [each for each in exact if each[1].sync_interval is None]
        if self._rejected or any(rejects(charge, state) for _, charge, state in exact):
            self._counters.rejections.store(exact, self._version, now)
