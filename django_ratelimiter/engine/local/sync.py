"""One call that cannot be decided here: what is charged here, what the engine is asked, and what its reply changes.

Each charge has one of three outcomes:

    decided here    a local counter covers it, or it is purely local
    asked           the engine decides it: it is exact, or this process knows too little of its counter. If another call
                    is syncing that counter, the cost is reserved in it
    synced          the engine decides it, gets the units that were charged here, and its reply renews the counter

Everything here is called under the lock of `LocalCounters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from ..base import Charge, Verdict, Version
from ..usage import UsageCarry
from .call import LocalCall, answer, is_denied, states_of
from .counter import CounterState, LocalCounter, LocalVerdict, is_local
from .denials import rejects
from .store import LocalCounters

#: Unused counters are synced with the calls of others, this many at once.
MAX_PIGGYBACKED: Final = 50


class SyncRequest(NamedTuple):
    """The arguments for the engine's `check`."""

    charges: Iterable[Charge]
    version: int | Version | None
    refund_if_denied: list[Verdict]
    refused: bool
    counts: UsageCarry | None

    def send(self, engine: Any) -> Any:
        """Call `check` and return its result. Optional arguments are passed only if they are set."""
        options: dict[str, Any] = {"refused": True} if self.refused else {}
        if self.counts:
            options["counts"] = self.counts
        return engine.check(self.charges, version=self.version, refund_if_denied=self.refund_if_denied, **options)


class SyncCall:
    """The charges of one call. now: when it began. is_exact: no charge or receipt concerns local counters."""

    def __init__(
        self,
        counters: LocalCounters,
        call: LocalCall,
        version: int | Version | None,
        receipts: Sequence[Verdict],
        now: float,
        *,
        is_exact: bool = False,
    ) -> None:
        self.is_exact = is_exact
        self._counters, self._call, self._version, self._began = counters, call, version, now
        self._receipts = [receipt for receipt in receipts if receipt.spent]
        #: The places of the charges that the engine decides.
        self._asked: list[int] = []
        #: The local counters among them, in which their costs are reserved, by place.
        self._reserved: dict[int, LocalCounter] = {}
        #: The units that are carried for those that this call syncs, by place.
        self._synced: dict[int, int] = {}
        #: The names of further counters that this call syncs, with the units that are carried for them.
        self._piggybacked: dict[str, tuple[LocalCounter, int]] = {}
        #: The local counters that decide the other charges, by place; and the places of those that are allowed.
        self._here: dict[int, LocalCounter] = {}
        self._allowed: set[int] = set()
        #: True if this process rejects the call; then the engine charges nothing.
        self._refused = False
        self._is_made = False

    def ask_as_given(self, engine: Any) -> Any:
        """Have the engine decide everything, as if there were no local counters. Afterwards call `remember`."""
        return engine.check(self._call.charges, version=self._version, refund_if_denied=self._receipts)

    def remember(self, replies: Sequence[Verdict], now: float) -> None:
        """Remember this reply if it is a rejection."""
        self._counters.version_state.confirm(self._version, self._began)
        if is_denied(replies):
            self._remember(dict(enumerate(states_of(replies))), now)

    def place(self) -> None:
        """Decide which charges are decided here, and charge these, so that nobody else uses their units meanwhile."""
        terms, here = self._call.terms, self._here
        comes_again = self._counters.comes_again(self._call, self._began)
        for place, (name, charge) in enumerate(zip(self._call.names, terms, strict=True)):
            counter = None
            if charge.sync_interval is not None and not charge.carried:
                counter = self._counters.counter(name, charge, self._began)
                if counter is None:
                    self._reserve(place, name, charge, is_new=comes_again)
            if counter is None:
                self._asked.append(place)
            else:
                here[place] = counter
        self._allowed = {place for place, counter in here.items() if not counter.rejects(terms[place])}
        self._refused = any(terms[place].gating for place in here if place not in self._allowed)
        if not self._refused:
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
            counter = LocalCounter(self._call.charges[place])
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

    def wider(self) -> SyncCall | None:
        """Return a call for units of the same counters that were charged under a wider limit; `None` = there are none.

        The engine accepts units only up to the quota of the limit that they come with, so they are sent with their own.
        """
        wider = SyncCall(self._counters, LocalCall(()), None, (), self._began)
        for name, charge in zip(self._call.names, self._call.terms, strict=True):
            counter = self._counters.by_name.get(name)
            if counter is not None and counter.widest > charge.limit.quota and self._began >= counter.due_at:
                wider._piggyback(name, counter)
        return wider if wider._piggybacked else None

    def _piggyback(self, name: str, counter: LocalCounter) -> None:
        if not counter.is_syncing and (carried := counter.unsynced(self._began)):
            counter.is_syncing = True
            self._piggybacked[name] = counter, carried

    def build_request(self, *, always: bool = True) -> SyncRequest | None:
        """Return the arguments of the call; `None` = no call. always: also call for the version alone, if it is due.

        A call without charges is made only for the version.
        """
        counters, version, asked = self._counters, self._version, self._asked
        theirs = [receipt for receipt in self._receipts if not is_here(receipt)]
        is_known = version is None or (self._call.names and counters.version_state.is_current(version, self._began))
        counts = counters.usage.lease()
        if not (asked or self._piggybacked or (self._refused and theirs) or (not is_known if always else counts)):
            counters.usage.acknowledge(counts, done=False)
            return None
        if version is not None:
            counters.version_state.claim(version, self._began)
        self._is_made = True
        carried = {place: units for place, units in self._synced.items() if units}
        charges = self._call.part(asked, self._uncounted(), carried)
        if self._piggybacked:
            charges = [*charges, *[counter.carry(units) for counter, units in self._piggybacked.values()]]
        return SyncRequest(charges, version, theirs, self._refused, counts)

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

    def _refund(self) -> None:
        """Refund what this call has charged here."""
        if not self._refused:
            for place in self._allowed:
                self._here[place].refund(self._call.terms[place].cost)

    def settle(self, replies: Sequence[Verdict], now: float) -> Sequence[Verdict]:
        """Store the engine's replies to the request. Return the verdicts on all charges."""
        counters, terms = self._counters, self._call.terms
        denied = self._refused or is_denied(replies)
        if self._is_made and self._version is not None:
            counters.version_state.confirm(self._version, self._began)
        for name, (counter, carried) in self._piggybacked.items():
            if counter.acknowledge(carried) and counters.by_name.get(name) is counter:
                counters.drop(name)
        results = {  # the last replies are about piggybacked counters
            place: self._learn(place, state, now, denied=denied)
            for place, state in zip(self._asked, states_of(replies), strict=False)
        }
        if denied:
            self._refund()
            for receipt in filter(is_here, self._receipts):
                counters.refund_here(receipt)
            self._remember(results, now)
        for place, counter in self._here.items():
            results[place] = counter.result(terms[place], now, is_allowed=place in self._allowed)
        return self._answer([results[place] for place in range(len(terms))], denied=denied)

    def _answer(self, states: list[CounterState], *, denied: bool) -> Sequence[Verdict]:
        """Return the verdicts on all charges, and count the call if this process has decided some of them."""
        if self._here:
            counted = sorted([*self._here, *self._uncounted()])
            if field := self._call.usage_field(counted, states, denied=denied):
                self._counters.usage.add(states[counted[0]].at_us, field)
        return answer(self._call, states, [self._here.get(place) for place in range(len(states))])

    def _remember(self, results: Mapping[int, CounterState], now: float) -> None:
        """Remember the engine's results for exact charges of a rejected call, if the rejection holds for a while."""
        names, terms = self._call.names, self._call.terms
        exact = [
            (names[place], terms[place], state)
            for place, state in results.items()
            if terms[place].sync_interval is None
        ]
        if self._refused or any(rejects(charge, state) for _, charge, state in exact):
            self._counters.denials.store(exact, self._version, now)

    def _learn(self, place: int, state: CounterState, now: float, *, denied: bool) -> CounterState:
        """Store the engine's result for one charge in its counter, if it has one. Return the result for the caller."""
        charge, counter = self._call.terms[place], self._reserved.get(place)
        if counter is None:
            return state
        counter.release(charge.cost)
        if place not in self._synced:
            counter.add_charged(0 if denied or state.is_rejected else charge.cost, state.at_us)
            return state
        counter.renew(charge, state, self._synced[place], self._began, now)
        if state.wait <= 0:
            return state
        return state._replace(wait=max(state.wait, ceil((counter.due_at - now) * 1_000_000)))  # no call before that


def is_here(receipt: Verdict) -> bool:
    """Return whether this process can refund what this receipt is for."""
    return isinstance(receipt, LocalVerdict) and (is_local(receipt.charge) or receipt.is_unsent)
