"""The counters of MemoryEngine: the same steps and results as check.lua on its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..algorithms import STEPS, Allow, State, Steps
from ..base import Charge, Verdict
from ..call import Call, CounterStates
from ..limits import EXACT, Terms
from ..shapes import in_steps

#: The counter's name, then as in `InSteps`.
Named = tuple[str, Charge, Steps, Terms | None, Allow | None]

#: The result of `decide` for one charge: name, charge, steps, terms, state, remaining, x, y, at_us, delay, passes.
_Found = tuple[str, Charge, Steps, Terms, State | None, int, int, int, int, int, bool]

#: A call takes at most this part of what is left in advance.
SHARE: Final = 8

_new = tuple.__new__  # what a named tuple calls in the end


class MemoryCounters:
    """Counters by name, each with its expiry time. Not locked: the engine has the lock.

    max_counters: how many to keep, and at most a quarter more: the oldest are dropped. `None` = all that are in use.
    """

    def __init__(self, max_counters: int | None = None) -> None:
        self._by_name: dict[str, tuple[State, int]] = {}
        self._sweep_at = 1_000
        self._max_counters = max_counters

    def __len__(self) -> int:
        return len(self._by_name)

    def clear(self) -> None:
        """Drop all counters."""
        self._by_name.clear()

    def forget(self, charge: Charge) -> None:
        """Drop the counter of this charge."""
        self._by_name.pop(_name(charge), None)

    def named(self, call: Call) -> list[Named]:
        """Return the charges of a call, without keys, and the names of their counters."""
        parts = call.template.in_steps
        if parts is None:
            parts = call.template.in_steps = [*map(in_steps, call.template.names, call.template.charges)]
        return [
            (before + partition + after, charge, steps, terms, allow)
            for (before, after, charge, steps, terms, allow), partition in zip(parts, call.partitions, strict=True)
        ]

    def decide(
        self,
        named: Sequence[Named],
        now: int,
        *,
        spending: bool,
        reject: bool = False,
        ahead: int = 0,
        wants: list[int] | None = None,
    ) -> CounterStates:
        """Decide, all or nothing, and return the result for each charge.

        spending: store the charges. reject: the call is rejected already. ahead: microseconds that the time of limits
        whose windows do not follow the clock is ahead of it. wants: see `Call`; each is replaced by what was taken.
        """
        if spending and not (reject or ahead or wants) and (charged := self._allow(named, now)) is not None:
            return charged
        leads = [0 if charge.limit.is_by_the_clock else ahead for _, charge, *_ in named] if ahead else [0] * len(named)
        found = [self._look(each, now + lead) for each, lead in zip(named, leads, strict=True)]
        rejected = reject or not all(each[10] or not each[1].gating for each in found)  # passes; by name takes longer
        taken = [0] * len(found)
        if wants:
            if spending and not rejected:
                taken = [_taken(each, want) for each, want in zip(found, wants, strict=True)]
            wants[:] = taken
        settled = [
            self._settle(each, now, lead, rejected, spending, units)
            for each, lead, units in zip(found, leads, taken, strict=True)
        ]
        if len(self._by_name) > self._sweep_at:
            self._sweep(now)
        parts = zip(*settled, strict=True) if settled else ((), (), (), ())
        return _new(CounterStates, (now, *parts))

    def refund(self, verdicts: Iterable[Verdict]) -> None:
        """Refund what these verdicts used, once."""
        for verdict in verdicts:
            name, limit = _name(verdict.charge), verdict.charge.limit
            counter = self._by_name.get(name)
            if counter and verdict.spent:
                (state, expires_at), at = counter, verdict.spent_at_us
                refunded = STEPS[limit.algorithm].refund(state, verdict.spent, at, limit.terms_at(at))
                if refunded:
                    self._by_name[name] = refunded, expires_at
            verdict.mark_refunded()

    def _allow(self, named: Sequence[Named], now: int) -> CounterStates | None:
        """Charge all if each is allowed. `None` = nothing was charged, and each must be decided step by step."""
        counters, charged = self._by_name, []
        for name, charge, _, terms, allow in named:
            if allow is None or terms is None:
                return None
            stored = counters.get(name)
            state, at = None, now
            if stored is not None:
                state = stored[0]
                if state[0] > now:  # if time runs backwards, use the stored time
                    at = state[0]
            found = allow(state, at, charge[2], terms)
            if found is None:
                return None
            charged.append((name, at, found))
        remaining, resets, leads = [], [], []
        for name, at, (state, left, reset) in charged:
            counters[name] = state, at + reset
            remaining.append(left)
            resets.append(reset + at - now if reset else 0)
            leads.append(at - now)
        if len(counters) > self._sweep_at:
            self._sweep(now)
        return _new(CounterStates, (now, remaining, [0] * len(remaining), resets, leads))

    def _look(self, named: Named, now: int) -> _Found:
        """Return the result for a charge."""
        name, charge, steps, fixed, _ = named
        stored = self._by_name.get(name)
        state, at = None, now
        if stored is not None:
            state = stored[0]
            if state[0] > now:  # if time runs backwards, use the stored time
                at = state[0]
        if fixed is None:
            return self._look_closely(name, charge, steps, state, at)
        remaining, x, y = steps.look(state, at, fixed)
        return name, charge, steps, fixed, state, remaining, x, y, at, 0, charge[2] <= remaining

    def _look_closely(self, name: str, charge: Charge, steps: Steps, state: State | None, at: int) -> _Found:
        """Return the result for a charge whose terms depend on the time."""
        terms = charge.limit.terms_at(at, charge.max_delay)
        remaining, x, y = steps.look(state, at, terms)
        delay, passes = 0, charge.cost <= remaining
        if charge.limit.holds:
            delay = steps.reset(x, y, at, terms, state, 0)
            passes = passes and (delay <= terms.extra or not charge.cost)
        return name, charge, steps, terms, state, remaining, x, y, at, delay, passes

    def _settle(
        self, one: _Found, now: int, ahead: int, rejected: bool, spending: bool, taken: int
    ) -> tuple[int, int, int, int]:
        """Apply one charge. Return remaining quota, wait, time until the full quota is back, and the clock's lead.

        taken: units that are charged with the cost, in advance.
        """
        name, charge, steps, terms, state, remaining, x, y, at, delay, passes = one
        cost, lead = charge.cost, at - now - ahead
        if passes and spending and cost and not rejected:
            cost += taken
            spent = steps.spend(x, cost, terms)
            reset = steps.reset(spent, y, at, terms, state, cost)
            self._by_name[name] = steps.store(spent, y, at, terms, state, cost, spent - x), at + reset
            return remaining - cost, -1 - delay if delay else 0, reset + lead if reset else 0, lead + ahead
        if spending and not passes and charge.count_refusals and cost:
            spent = steps.spend(x, min(cost, EXACT), terms)
            state = steps.store(spent, y, at, terms, state, min(cost, EXACT), spent - x)
            remaining, x, y = steps.look(state, at, terms)  # units that did not fit may have replaced older ones
            is_stored = True
        else:
            is_stored = False
        reset = steps.reset(x, y, at, terms, state, 0)
        wait = -1 - delay if delay else 0
        if not passes:
            wait = -1
            if cost <= terms.capacity:
                wait = steps.wait(x, y, at, cost, terms, state) if cost > remaining else 0
                wait = lead + (max(wait, reset - terms.extra) if charge.limit.holds else wait)
        if is_stored and state:
            self._by_name[name] = state, at + reset
        elif spending and not passes and wait != -1:
            self._extend(name, at + reset)
        return remaining, wait, reset + lead if reset else 0, lead + ahead

    def _sweep(self, now: int) -> None:
        """Drop the counters whose full quota is back. Called whenever their number has doubled."""
        alive = {key: stored for key, stored in self._by_name.items() if stored[1] > now}
        if self._max_counters is not None and len(alive) > self._max_counters:
            alive = dict(list(alive.items())[-self._max_counters :])
        self._by_name, self._sweep_at = alive, max(1_000, 2 * len(alive))
        if self._max_counters is not None:
            self._sweep_at = min(self._sweep_at, max(1_000, self._max_counters * 5 // 4))

    def _extend(self, name: str, until_us: int) -> None:
        """Extend the expiry of a counter charged under a higher quota: it must last until the cost would be allowed."""
        state, expires_at = self._by_name.get(name, ((), until_us))
        if expires_at < until_us:
            self._by_name[name] = state, until_us


def _name(charge: Charge) -> str:
    return charge.key + charge.limit.tag


def _taken(found: _Found, want: int) -> int:
    """Return how many units an allowed call takes in advance."""
    _, charge, _, terms, _, remaining, *_, passes = found
    left = remaining - charge.cost
    return max(min(want, left // SHARE, left - terms.soft_floor), 0) if passes and charge.cost else 0
