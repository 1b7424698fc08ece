"""The charges of requests in a replay: kinds of requests, and their counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ..engine.algorithms import State
from ..engine.memory.counters import MemoryCounters, Prepared, prepared
from ..engine.templates import CallTemplate, CounterStates
from ..limiter.templates import MaxDelay, RuleCallTemplate, RuleTemplates
from ..rules.records import RuleRecord
from ..rules.tiers import Entitlement
from ..values.partitions import encode_partition
from .callers import CallerKind, LoggedCaller
from .targets import LoggedTarget

#: What an allowed call has stored for each charge: name, time of the counter, state, remaining units and reset.
AllowedCall = list[tuple[str, int, tuple[State, int, int]]]


class ReplayPlan:
    """The rules that some targets' entry points decide. Compared by identity.

    kinds: of requests, by the kind of their callers after authentication.
    """

    __slots__ = ("kinds", "rules")

    def __init__(self, rules: tuple[RuleRecord, ...]) -> None:
        self.rules = rules
        self.kinds: dict[CallerKind, RequestKind] = {}


class RequestKind:
    """Requests that match the same rules at one entry point, by callers of one tier and multiplier.

    template: if no value is missing. pick: selects the partitions of its charges from a caller's parts; a part is
    `None` if the caller lacks it; `None` = they must be composed.
    """

    def __init__(self, rules: Sequence[RuleRecord], entitlement: Entitlement, max_delay: MaxDelay, places: Any) -> None:
        self._templates = RuleTemplates(rules, entitlement, max_delay)
        self._sources = [_Source(source) for source in self._templates.sources]
        self.template = self._templates.complete
        self.pick = self._picker(places) if self.template.owners else None

    def fill(self, caller: LoggedCaller, target: LoggedTarget) -> tuple[RuleCallTemplate | None, tuple[str, ...]]:
        """Return the charges of a request as a template, and its partitions; `None` = none."""
        charges = self._templates.fill([source.partition(caller, target) for source in self._sources])
        if not charges:
            return None, ()
        assert isinstance(charges.template, RuleCallTemplate)
        return charges.template, charges.partitions

    def _picker(self, places: Any) -> Callable[[tuple[str | None, ...]], tuple[str, ...]] | None:
        sources = ["".join(source.names) if source.is_single else "" for source in self._sources]
        if not all(name in places for name in sources):
            return None
        pick: Any = self.template.pick
        chosen: list[int] = list(pick((0, *[places[name] for name in sources])))
        first = chosen[0]
        return itemgetter(*chosen) if len(chosen) > 1 else itemgetter(slice(first, first + 1))


class _Source:
    """The values that distinguish the counters of some rules."""

    __slots__ = ("_by_path", "_falls_back", "is_single", "names")

    def __init__(self, source: Any) -> None:
        if isinstance(source, str):
            self.names, self._falls_back = (source,) if source else (), False
        else:
            self.names, self._falls_back = source.partition_by, source.missing_partition == "ip"
        self._by_path = any(name.startswith("path:") for name in self.names)
        self.is_single = len(self.names) == 1 and not (self._falls_back or self._by_path)

    def partition(self, caller: LoggedCaller, target: LoggedTarget) -> str | None:
        """Return the partition of a request; `None` = a value is missing."""
        parts = [
            _part_of_path(name, target) if self._by_path and name.startswith("path:") else caller.part(name)
            for name in self.names
        ]
        if None in parts:
            return caller.part("ip") if self._falls_back else None
        return "|".join(parts)  # type: ignore[arg-type]


def _part_of_path(name: str, target: LoggedTarget) -> str | None:
    value = target.captured.get(name[len("path:") :])
    return None if value is None else encode_partition(((name, str(value)),))


class ReplayCounters(MemoryCounters):
    """Counters that decide calls by their template and the partitions, one for each charge of the template."""

    def decide_call(self, call: CallTemplate, partitions: Sequence[str], now: int) -> tuple[CounterStates, bool]:
        """Decide and charge, all or nothing. Return the result for each charge, and whether the call is denied."""
        allowed = self.allow_call(call, partitions, now)
        return self.decide_closely(call, partitions, now) if allowed is None else (states_of(allowed, now), False)

    def allow_call(self, call: CallTemplate, partitions: Sequence[str], now: int) -> AllowedCall | None:
        """Charge all if each is allowed; `None` = nothing is charged, and `decide_closely` is needed."""
        counters, allowed = self._by_name, []
        parts = call.kept.get(ReplayCounters) or _prepare(call)
        for (before, after, charge, _, terms, admit), partition in zip(parts, partitions, strict=True):
            if admit is None or terms is None:
                return None
            name = f"{before}{partition}{after}"
            stored = counters.get(name)
            state, at = None, now
            if stored is not None:
                state = stored[0]
                if state[0] > now:  # if time runs backwards, use the stored time
                    at = state[0]
            found = admit(state, at, charge[2], terms)
            if found is None:
                return None
            allowed.append((name, at, found))
        for name, at, found in allowed:
            counters[name] = found[0], at + found[2]
        if len(counters) > self._sweep_at:
            self._sweep(now)
        return allowed

    def decide_closely(self, call: CallTemplate, partitions: Sequence[str], now: int) -> tuple[CounterStates, bool]:
        """Decide step by step what was not allowed."""
        parts = call.kept.get(ReplayCounters) or _prepare(call)
        named = [
            (f"{before}{partition}{after}", charge, steps, terms, admit)
            for (before, after, charge, steps, terms, admit), partition in zip(parts, partitions, strict=True)
        ]
        return self.decide_by_steps(named, now, spending=True)

    def _sweep(self, now: int) -> None:
        super()._sweep(now)
        self._sweep_at = max(1_000, len(self) * 3 // 2)  # sooner than engines do: a log can have millions of callers


def _prepare(call: CallTemplate) -> list[Prepared]:
    """Return the common parts of all calls of a template, and cache them."""
    parts = prepared(call)
    if len({part[:2] for part in parts}) != len(parts):
        raise ValueError("charges: the same key and limit occur twice in one call; add up their costs instead.")
    call.kept[ReplayCounters] = parts
    return parts


def states_of(allowed: AllowedCall, now: int) -> CounterStates:
    """Return the states of an allowed call."""
    return CounterStates(
        now,
        [left for _, _, (_, left, _) in allowed],
        [0] * len(allowed),
        [reset + at - now if reset else 0 for _, at, (_, _, reset) in allowed],
        [at - now for _, at, _ in allowed],
    )
