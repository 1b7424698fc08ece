"""Replay: the requests of a log, decided by a rule set as the doors would, on the clock of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

from ..decision import NOTHING_TO_DECIDE, Decision, merge
from ..engine.base import Verdict, leases
from ..engine.memory.counters import MemoryCounters, Named
from ..engine.templates import CounterStates, FilledCharges, FilledVerdicts, verdicts_from
from ..limiter.charges import Only, needs_user
from ..limiter.templates import MaxDelay, RuleCallTemplate, RuleCharges, RuleTemplates
from ..rules.records import RuleRecord, TierRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.access import AccessRecord
from .callers import LoggedCaller, partition_of_values
from .logs.line import AccessLogLine
from .outcomes import DENIED, NO_RULES, ReplayOutcome, outcome_of
from .targets import LoggedTarget, PassedDoor

#: The most kinds of requests whose charges are remembered; beyond that all are made anew.
_MAX_KINDS: Final = 10_000


class _Plan:
    """The rules that the doors of some targets ask about. Compared by identity."""

    __slots__ = ("rules",)

    def __init__(self, rules: tuple[RuleRecord, ...]) -> None:
        self.rules = rules


class _Kind:
    """Requests that match the same rules at one door, by callers of one tier and multiplier."""

    def __init__(self, rules: Sequence[RuleRecord], entitlement: Entitlement, max_delay: MaxDelay) -> None:
        self.templates = RuleTemplates(rules, entitlement, max_delay)
        self.sources = [_Source(source) for source in self.templates.sources]
        self.is_by_path = any(source.by_path for source in self.sources)

    def charges(self, caller: LoggedCaller, target: LoggedTarget) -> RuleCharges:
        """Return what a request is charged."""
        return self.templates.fill([source.partition(caller, target) for source in self.sources])


class _Source:
    """What tells the counters of some rules apart."""

    __slots__ = ("by_path", "falls_back", "names")

    def __init__(self, source: Any) -> None:
        if isinstance(source, str):
            self.names, self.falls_back = (source,) if source else (), False
        else:
            self.names, self.falls_back = source.partition_by, source.missing_partition == "ip"
        self.by_path = any(name.startswith("path:") for name in self.names)

    def partition(self, caller: LoggedCaller, target: LoggedTarget) -> str | None:
        """Return the partition of a request; `None` = it lacks something."""
        if self.by_path:
            captured = {f"path:{name}": str(value) for name, value in target.captured.items() if value is not None}
            return self._find({**caller.values, **captured})
        return self._find(caller.values)

    def _find(self, values: Any) -> str | None:
        found = partition_of_values(values, self.names)
        return partition_of_values(values, ("ip",)) if found is None and self.falls_back else found


class Replay:
    """One rule set, and its counters as of the line that was decided last.

    number: 0 or 1, its place in what is compared. max_delay: see `RuleTemplates`. max_counters: see `MemoryCounters`.
    """

    def __init__(
        self, rules: RuleSet, number: int = 0, *, max_delay: MaxDelay = "rule", max_counters: int | None = None
    ) -> None:
        self.rules = rules
        self.counters = MemoryCounters(max_counters)
        self._number, self._max_delay = number, max_delay
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._outcomes: dict[Any, ReplayOutcome] = {}
        self._in_flight: list[tuple[int, int, list[Verdict]]] = []
        self._latest: list[tuple[RuleCharges, Sequence[Verdict]]] = []
        self._unread: tuple[RuleCharges, CounterStates] | None = None
        self._denied: AccessRecord | None = None
        self._decision: Decision | None = None

    def decide(self, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller) -> ReplayOutcome:
        """Decide a request, and charge it; then give back what its response, as the log has it, gives back."""
        if self._in_flight:
            self._release(line.time_us)
        self._denied = self._decision = None
        plan = target.plans[self._number]
        if plan is None:
            plan = target.plans[self._number] = self._plan(target)
        if plan is False:
            return self._decide_in_turn(line, target, caller)
        if not plan.rules or caller.access is not None:
            self._latest, self._unread = [], None
            return self._deny(caller.access) if target.doors else NO_RULES
        return self._decide_at_once(plan, line, target, caller)

    def decision(self) -> Decision:
        """Return the decision on the request that was decided last, as its door would have it."""
        if self._decision is not None:
            return self._decision
        found = NOTHING_TO_DECIDE
        for charges, verdicts in self._decided():
            found = merge(found, charges.decision(verdicts, self.rules.version))
        return found if self._denied is None else replace(found, allowed=False, access=self._denied)

    def _deny(self, access: AccessRecord | None) -> ReplayOutcome:
        """Return what an access entry says, if there is one."""
        if access is None or access.action != "deny":
            return NO_RULES
        self._denied = access
        return DENIED

    def _plan(self, target: LoggedTarget) -> _Plan | bool:
        """Return the rules that the one door of a target asks about; False = it has several, or not the usual one."""
        if len(target.doors) > 1 or any(door.before_authentication for door in target.doors):
            return False
        return self._share([rule for door in target.doors for rule in self._match(target, door)])

    def _match(self, target: LoggedTarget, door: PassedDoor) -> tuple[RuleRecord, ...]:
        rules = self.rules.match(target.facts._replace(scope=door.scope))
        return tuple([rule for rule in rules if rule.scope == door.scope]) if isinstance(door.scope, Only) else rules

    def _share(self, rules: Sequence[RuleRecord]) -> _Plan:
        """Return the one plan of these rules."""
        slugs = tuple([rule.slug for rule in rules])
        return self._plans.get(slugs) or self._plans.setdefault(slugs, _Plan(tuple(rules)))

    def _kind(self, rules: tuple[RuleRecord, ...], entitlement: Entitlement) -> _Kind:
        key = id(rules), id(entitlement)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(rules, entitlement, self._max_delay)
        return kind

    def _decide_at_once(
        self, plan: _Plan, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller
    ) -> ReplayOutcome:
        charges, named = caller.charges.get(plan) or self._prepare(plan, False, target, caller)
        template = charges.template
        if template is None:
            self._latest, self._unread = [], None
            return NO_RULES
        states, _ = self.counters.decide(named, line[0], spending=True)
        self._unread = charges, states
        if not template.is_plain:
            self._end(self._decided(), line)
        waits = states[2]
        outcome = self._outcomes.get(template if not any(waits) else (template, *waits_fail(waits)))
        return outcome or self._keep(template, waits)

    def _prepare(
        self, plan: _Plan, early: bool, target: LoggedTarget, caller: LoggedCaller
    ) -> tuple[RuleCharges, Sequence[Named]]:
        """Return what a caller is charged, with the names of the counters. Remembered, unless parts of the path count.

        early: before authentication.
        """
        kind = self._kind(plan.rules, (caller.early_entitlements if early else caller.entitlements)[self._number])
        charges = kind.charges(caller, target)
        found = charges, self.counters.named(charges.charges)
        if not kind.is_by_path:
            caller.charges[(plan, early) if early else plan] = found
        return found

    def _decided(self) -> list[tuple[RuleCharges, Sequence[Verdict]]]:
        """Return what was decided last. The verdicts of a request with one door are made once somebody reads them."""
        if self._unread is not None:
            (charges, states), self._unread = self._unread, None
            assert isinstance(charges.charges, FilledCharges)
            self._latest = [(charges, FilledVerdicts.of(charges.charges, states))]
        return self._latest

    def _keep(self, template: RuleCallTemplate, waits: Sequence[int]) -> ReplayOutcome:
        fails = waits_fail(waits)
        outcome = outcome_of(zip(template.owners, fails, strict=True))
        self._outcomes[(template, *fails) if any(waits) else template] = outcome
        return outcome

    def _decide_in_turn(self, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller) -> ReplayOutcome:
        """Decide at each door, as long as none rejects the request."""
        decided: list[tuple[RuleCharges, Sequence[Verdict]]] = []
        asked: list[tuple[tuple[RuleRecord, TierRecord | None], bool]] = []
        done: set[str] = set()
        self._latest, self._unread = decided, None
        for door in target.doors:
            access = caller.early_access if door.before_authentication else caller.access
            if access is not None:
                if self._deny(access) is DENIED:
                    self.counters.refund([verdict for _, verdicts in decided for verdict in verdicts])
                    return DENIED
                continue
            charges, named = self._charges(door, target, caller, done)
            if charges.template is None:
                continue
            receipts = [verdict for _, verdicts in decided for verdict in verdicts]
            verdicts = self._check(charges, named, line.time_us, receipts)
            decided.append((charges, verdicts))
            done.update(rule.slug for rule, _ in charges.owners)
            asked += zip(charges.owners, [not verdict.allowed for verdict in verdicts], strict=True)
            if any(not verdict.allowed and verdict.charge.gating for verdict in verdicts):
                return self._shared_outcome(asked)
        self._end(decided, line)
        return self._shared_outcome(asked) if asked else NO_RULES

    def _check(
        self, charges: RuleCharges, named: Sequence[Named], now: int, receipts: Sequence[Verdict]
    ) -> list[Verdict]:
        """Decide and spend, all or nothing. receipts: given back if it is denied."""
        states, denied = self.counters.decide(named, now, spending=True)
        if denied:
            self.counters.refund(receipts)
        return verdicts_from(charges.charges, states, denied=denied)

    def _shared_outcome(self, asked: Sequence[tuple[tuple[RuleRecord, TierRecord | None], bool]]) -> ReplayOutcome:
        key = tuple([(rule.slug, tier.slug if tier else "", fails) for (rule, tier), fails in asked])
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = outcome_of(asked)
        return outcome

    def _charges(
        self, door: PassedDoor, target: LoggedTarget, caller: LoggedCaller, done: set[str]
    ) -> tuple[RuleCharges, Sequence[Named]]:
        api_key, early = caller.values.get("api_key"), door.before_authentication
        due = [
            rule
            for rule in self._match(target, door)
            if rule.slug not in done and not (early and needs_user(rule, api_key))
        ]
        plan = self._share(due)
        return caller.charges.get((plan, early) if early else plan) or self._prepare(plan, early, target, caller)

    def _end(self, decided: Sequence[tuple[RuleCharges, Sequence[Verdict]]], line: AccessLogLine) -> None:
        """Give back what the response does not earn, and note when leases end."""
        unearned = "success" if line.status >= 400 and line.status != 429 else "failure"
        verdicts = [verdict for _, several in decided for verdict in several]
        owners = [rule for charges, _ in decided for rule, _ in charges.owners]
        back = [
            verdict
            for rule, verdict in zip(owners, verdicts, strict=True)
            if rule.charge_when == unearned and verdict.spent
        ]
        if back:
            decision = self.decision()
            decision.binding  # noqa: B018  found by what was left before, as doors find it
            self._decision = decision
            self.counters.refund(back)
        if held := leases(verdicts):
            delay = max([verdict.delay for verdict in verdicts if verdict.charge.gating], default=0.0)
            until = line.time_us + round(delay * 1_000_000) + max(line.duration_us, 0)
            heappush(self._in_flight, (until, id(held), held))

    def _release(self, now: int) -> None:
        while self._in_flight and self._in_flight[0][0] <= now:
            self.counters.refund(heappop(self._in_flight)[2])


def waits_fail(waits: Sequence[int]) -> list[bool]:
    """Return for each charge whether it did not pass, see `CounterStates`."""
    return [wait > 0 or wait == -1 for wait in waits]
