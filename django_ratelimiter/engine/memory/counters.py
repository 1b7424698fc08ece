"""The counters of MemoryEngine: what check.lua does with its keys, in the same steps and with the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..algorithms import STEPS, State, Steps
from ..base import Charge, Verdict, check_units
from ..limits import EXACT, Terms
from ..templates import CallTemplate, CounterStates, FilledCharges

#: The name that a counter is stored under, the charge, and the steps of its algorithm.
Named = tuple[str, Charge, Steps]

#: What `decide` found for one charge: name, charge, steps, terms, state, remaining, x, y, at_us, delay, passes.
_Found = tuple[str, Charge, Steps, Terms, State | None, int, int, int, int, int, bool]

#: Of how many templates the names are remembered.
_MAX_TEMPLATES: Final = 10_000


class MemoryCounters:
    """Counters by name, each with the time at which it says nothing any more. Not locked: its engine is.

    max_counters: counters to keep, about, the oldest being dropped; `None` = all that still say something.
    dropped: how many were dropped that still said something.
    """

    def __init__(self, max_counters: int | None = None) -> None:
        self.dropped = 0
        self._by_name: dict[str, tuple[State, int]] = {}
        self._sweep_at = 1_000
        self._max_counters = max_counters
        self._names: dict[CallTemplate, list[tuple[str, str, Charge, Steps]]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def clear(self) -> None:
        """Drop all of them."""
        self._by_name.clear()

    def forget(self, charge: Charge) -> None:
        """Drop the counter of this charge."""
        self._by_name.pop(_name(charge), None)

    def named(self, charges: Sequence[Charge]) -> list[Named]:
        """Return the charges with their names. Those that are filled share the charge of their template.

        Raises ValueError for units that are no whole numbers, and for two charges of one counter.
        """
        if isinstance(charges, FilledCharges):
            parts = self._names.get(charges.template) or self._prepare(charges.template)
            named = [
                (before + partition + after, charge, steps)
                for (before, after, charge, steps), partition in zip(parts, charges.partitions, strict=True)
            ]
        else:
            for charge in charges:
                check_units(charge)
            named = [(_name(charge), charge, STEPS[charge.limit.algorithm]) for charge in charges]
        if len(named) > 1 and len({each[0] for each in named}) != len(named):
            raise ValueError("charges: the same key and limit stand twice in one call; add up their costs instead.")
        return named

    def decide(
        self, named: Iterable[Named], now: int, *, spending: bool, refused: bool = False
    ) -> tuple[CounterStates, bool]:
        """Decide, all or nothing, and return what was found and whether the call is denied.

        spending: store what is spent. refused: the call is denied already.
        """
        found: list[_Found] = []
        denied = refused
        for each in named:
            one = self._look(each, now, spending)
            found.append(one)
            if not one[10] and each[1].gating:
                denied = True
        remaining, waits, resets, leads = [], [], [], []
        for one in found:
            left, wait, reset = self._settle(one, now, denied, spending)
            remaining.append(left)
            waits.append(wait)
            resets.append(reset)
            leads.append(one[8] - now)
        return CounterStates(now, remaining, waits, resets, leads), denied

    def trial(self, named: Iterable[Named], now: int) -> tuple[CounterStates, bool]:
        """Return what `decide` would, spending, and leave everything as it is."""
        counters = self._by_name
        self._by_name = dict(counters)  # which it may spend from
        try:
            return self.decide(named, now, spending=True)
        finally:
            self._by_name = counters

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Give back what these verdicts spent, once."""
        for verdict in verdicts:
            name, limit = _name(verdict.charge), verdict.charge.limit
            counter = self._by_name.get(name)
            if counter and verdict.spent:
                spent, at = verdict.spent, verdict.spent_at_us
                state = STEPS[limit.algorithm].refund(counter[0], spent, at, limit.terms_at(at))
                if state:
                    self._by_name[name] = state, counter[1]
            verdict.mark_refunded()

    def _prepare(self, template: CallTemplate) -> list[tuple[str, str, Charge, Steps]]:
        for each in template.templates:
            check_units(each.charge)
        if len(self._names) >= _MAX_TEMPLATES:
            self._names.clear()
        parts = [
            (before, after + charge.limit.tag, charge, STEPS[charge.limit.algorithm])
            for before, after, charge, _ in template.templates
        ]
        self._names[template] = parts
        return parts

    def _look(self, named: Named, now: int, spending: bool) -> _Found:
        name, charge, steps = named
        limit = charge.limit
        stored = self._by_name.get(name)
        state, at = None, now
        if stored is not None:
            state = stored[0]
            if state[0] > now:  # time that runs backwards stands still
                at = state[0]
        terms = limit.terms if limit.is_fixed else limit.terms_at(at, charge.max_delay)
        remaining, x, y = steps.look(state, at, terms)
        if charge.carried and spending:
            x, before = steps.spend(x, charge.carried, terms), x
            state = steps.store(x, y, at, terms, state, charge.carried, x - before)
            remaining, x, y = steps.look(state, at, terms)
        delay, passes = 0, charge.cost <= remaining
        if limit.holds:
            delay = steps.reset(x, y, at, terms, state, 0)
            passes = passes and (delay <= terms.extra or not charge.cost)
        return name, charge, steps, terms, state, remaining, x, y, at, delay, passes

    def _settle(self, one: _Found, now: int, denied: bool, spending: bool) -> tuple[int, int, int]:
        """Spend what one charge spends, and return what remains, how long to wait, and when the quota is back."""
        name, charge, steps, terms, state, remaining, x, y, at, delay, passes = one
        cost, spent, lead = charge.cost, 0, at - now
        spends = spending and cost > 0 and (not denied if passes else charge.count_refusals)
        if spends:
            cost = min(cost, EXACT)
            x, before = steps.spend(x, cost, terms), x
            stored = steps.store(x, y, at, terms, state, cost, x - before)
            if passes:
                remaining, spent = remaining - cost, cost
            else:  # what did not fit may have pushed out what was there
                remaining, x, y = steps.look(stored, at, terms)
                state = stored
        reset = steps.reset(x, y, at, terms, state, spent)
        wait = -1 - delay if delay else 0
        if not passes:
            wait = -1
            if cost <= terms.capacity:
                wait = steps.wait(x, y, at, cost, terms, state) if cost > remaining else 0
                wait = lead + (max(wait, reset - terms.extra) if charge.limit.holds else wait)
        if spends:
            self._store(name, stored, at + reset, now)
        elif spending and charge.carried and state:
            self._store(name, state, at + reset, now)
        elif spending and not passes and wait != -1:
            self._extend(name, at + reset)
        return remaining, wait, reset + lead if reset else 0

    def _store(self, name: str, state: State, expires_us: int, now: int) -> None:
        """Store a counter; whenever their number has doubled, drop those whose full quota is back."""
        self._by_name[name] = state, expires_us
        if len(self._by_name) > self._sweep_at:
            alive = {key: stored for key, stored in self._by_name.items() if stored[1] > now}
            if self._max_counters is not None and len(alive) > self._max_counters:
                self.dropped += len(alive) - self._max_counters
                alive = dict(list(alive.items())[-self._max_counters :])
            self._by_name, self._sweep_at = alive, max(1_000, 2 * len(alive))

    def _extend(self, name: str, until_us: int) -> None:
        """Spent under a higher quota, a counter would be forgotten before it passes by this one."""
        counter = self._by_name.get(name)
        if counter and counter[1] < until_us:
            self._by_name[name] = counter[0], until_us


def _name(charge: Charge) -> str:
    return charge.key + charge.limit.tag
