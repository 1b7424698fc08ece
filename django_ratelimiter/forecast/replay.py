"""Replay: the requests of a log, decided by a rule set as at the entry points, with the times of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Final

from ..decision import NOTHING_TO_DECIDE, Decision, merge
from ..engine.base import Verdict, leases
from ..engine.templates import CounterStates, FilledCharges, FilledVerdicts, verdicts_from
from ..limiter.charges import Only, needs_user
from ..limiter.templates import MaxDelay, RuleCallTemplate, decision_of
from ..rules.records import RuleRecord, TierRecord
from ..rules.ruleset import RuleSet
from ..values.access import AccessRecord
from .callers import LoggedCaller
from .charges import AllowedCall, ReplayCounters, ReplayPlan, RequestKind, states_of
from .logs.line import AccessLogLine
from .outcomes import DENIED, NO_RULES, ReplayOutcome, outcome_of
from .targets import LoggedTarget, PassedDoor

#: Maximum number of kinds of requests with cached charges; then all are dropped.
_MAX_KINDS: Final = 10_000

#: The last decision, without verdicts: template, partitions, time, and states.
_Unread = tuple[RuleCallTemplate, tuple[str, ...], int, AllowedCall | CounterStates]


class Replay:
    """One rule set, and its counters after the last decided line.

    number: 0 or 1, its place in the comparison. max_delay: see `RuleTemplates`. max_counters: see `MemoryCounters`.
    """

    def __init__(
        self, rules: RuleSet, number: int = 0, *, max_delay: MaxDelay = "rule", max_counters: int | None = None
    ) -> None:
        self.rules = rules
        self.counters = ReplayCounters(max_counters)
        self._number, self._max_delay = number, max_delay
        self._kinds: dict[tuple[int, int], RequestKind] = {}
        self._plans: dict[tuple[str, ...], ReplayPlan] = {}
        self._outcomes: dict[Any, ReplayOutcome] = {}
        self._in_flight: list[tuple[int, int, list[Verdict]]] = []
        self._latest: list[tuple[FilledCharges, Sequence[Verdict]]] = []
        self._unread: _Unread | None = None
        self._denied: AccessRecord | None = None
        self._decision: Decision | None = None

    def decide(self, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller) -> ReplayOutcome:
        """Decide a request and charge it; then make the refunds for its response in the log."""
        if self._in_flight:
            self._release(line.time_us)
        self._denied = self._decision = None
        plan = target.plans[self._number]
        if plan is None:
            plan = target.plans[self._number] = self._plan(target)
        if plan is False:
            return self._decide_in_turn(line, target, caller)
        access = caller.kind.access
        if not plan.rules or access is not None:
            self._latest, self._unread = [], None
            return self._deny(access) if target.doors else NO_RULES
        return self._decide_at_once(plan, line, target, caller)

    def decision(self) -> Decision:
        """Return the last decision, as its entry point would return it."""
        if self._decision is not None:
            return self._decision
        found = NOTHING_TO_DECIDE
        for charges, verdicts in self._decided():
            found = merge(found, decision_of(charges, verdicts, self.rules.version))
        return found if self._denied is None else replace(found, allowed=False, access=self._denied)

    def _deny(self, access: AccessRecord | None) -> ReplayOutcome:
        """Return the outcome of an access entry, if there is one."""
        if access is None or access.action != "deny":
            return NO_RULES
        self._denied = access
        return DENIED

    def _plan(self, target: LoggedTarget) -> ReplayPlan | bool:
        """Return the rules that the only entry point of a target decides; False = several, or an unusual one."""
        if len(target.doors) > 1 or any(door.before_authentication for door in target.doors):
            return False
        return self._share([rule for door in target.doors for rule in self._match(target, door)])

    def _match(self, target: LoggedTarget, door: PassedDoor) -> tuple[RuleRecord, ...]:
        rules = self.rules.match(target.facts._replace(scope=door.scope))
        return tuple([rule for rule in rules if rule.scope == door.scope]) if isinstance(door.scope, Only) else rules

    def _share(self, rules: Sequence[RuleRecord]) -> ReplayPlan:
        """Return the shared plan of these rules."""
        slugs = tuple([rule.slug for rule in rules])
        return self._plans.get(slugs) or self._plans.setdefault(slugs, ReplayPlan(tuple(rules)))

    def _kind(self, plan: ReplayPlan, caller: LoggedCaller, *, early: bool = False) -> RequestKind:
        """Return the kind of a request. early: before authentication."""
        entitlements = caller.kind.early_entitlements if early else caller.kind.entitlements
        entitlement = entitlements[self._number]
        key = id(plan), id(entitlement)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
                for each in self._plans.values():
                    each.kinds.clear()
            kind = RequestKind(plan.rules, entitlement, self._max_delay, caller.kind.places)
            self._kinds[key] = kind
        if not early:
            plan.kinds[caller.kind] = kind
        return kind

    def _decide_at_once(
        self, plan: ReplayPlan, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller
    ) -> ReplayOutcome:
        kind = plan.kinds.get(caller.kind) or self._kind(plan, caller)
        template = kind.template
        partitions = () if kind.pick is None else kind.pick(caller.parts)
        if not partitions or None in partitions:
            filled, partitions = kind.fill(caller, target)
            if filled is None:
                self._latest, self._unread = [], None
                return NO_RULES
            template = filled
        now, waits = line[0], None
        found: AllowedCall | CounterStates | None = self.counters.allow_call(template, partitions, now)
        if found is None:
            found, _ = self.counters.decide_closely(template, partitions, now)
            waits = found.waits if any(found.waits) else None
        self._unread = template, partitions, now, found
        if not template.is_plain:
            self._end(self._decided(), line)
        outcome = self._outcomes.get(template if waits is None else (template, *waits_fail(waits)))
        return outcome or self._keep(template, waits or (0,) * len(partitions))

    def _decided(self) -> list[tuple[FilledCharges, Sequence[Verdict]]]:
        """Return the last decision. With one entry point, the verdicts are made when they are read."""
        if self._unread is not None:
            (template, partitions, now, found), self._unread = self._unread, None
            states = states_of(found, now) if isinstance(found, list) else found
            filled = FilledCharges(template, partitions)
            self._latest = [(filled, FilledVerdicts.of(filled, states))]
        return self._latest

    def _keep(self, template: RuleCallTemplate, waits: Sequence[int]) -> ReplayOutcome:
        fails = waits_fail(waits)
        outcome = outcome_of(zip(template.owners, fails, strict=True))
        self._outcomes[(template, *fails) if any(waits) else template] = outcome
        return outcome

    def _decide_in_turn(self, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller) -> ReplayOutcome:
        """Decide at each entry point until one rejects the request."""
        decided: list[tuple[FilledCharges, Sequence[Verdict]]] = []
        asked: list[tuple[tuple[RuleRecord, TierRecord | None], bool]] = []
        done: set[str] = set()
        self._latest, self._unread = decided, None
        for door in target.doors:
            access = caller.kind.early_access if door.before_authentication else caller.kind.access
            if access is not None:
                if self._deny(access) is DENIED:
                    self.counters.refund([verdict for _, verdicts in decided for verdict in verdicts])
                    return DENIED
                continue
            template, partitions = self._fill(door, target, caller, done)
            if template is None:
                continue
            receipts = [verdict for _, verdicts in decided for verdict in verdicts]
            charges = FilledCharges(template, partitions)
            verdicts = self._check(charges, line.time_us, receipts)
            decided.append((charges, verdicts))
            done.update(rule.slug for rule, _ in template.owners)
            asked += zip(template.owners, [not verdict.allowed for verdict in verdicts], strict=True)
            if any(not verdict.allowed and verdict.charge.gating for verdict in verdicts):
                return self._shared_outcome(asked)
        self._end(decided, line)
        return self._shared_outcome(asked) if asked else NO_RULES

    def _check(self, charges: FilledCharges, now: int, receipts: Sequence[Verdict]) -> list[Verdict]:
        """Decide and charge, all or nothing. receipts: refunded if it is denied."""
        states, denied = self.counters.decide_call(charges.template, charges.partitions, now)
        if denied:
            self.counters.refund(receipts)
        return verdicts_from(charges, states, denied=denied)

    def _shared_outcome(self, asked: Sequence[tuple[tuple[RuleRecord, TierRecord | None], bool]]) -> ReplayOutcome:
        key = tuple([(rule.slug, tier.slug if tier else "", fails) for (rule, tier), fails in asked])
        outcome = self._outcomes.get(key)
        if outcome is None:
            outcome = self._outcomes[key] = outcome_of(asked)
        return outcome

    def _fill(
        self, door: PassedDoor, target: LoggedTarget, caller: LoggedCaller, done: set[str]
    ) -> tuple[RuleCallTemplate | None, tuple[str, ...]]:
        """Return the charges of an entry point, and the partitions; `None` = none. done: rules decided before."""
        api_key, early = caller.part("api_key"), door.before_authentication
        due = [
            rule
            for rule in self._match(target, door)
            if rule.slug not in done and not (early and needs_user(rule, api_key))
        ]
        return self._kind(self._share(due), caller, early=early).fill(caller, target)

    def _end(self, decided: Sequence[tuple[FilledCharges, Sequence[Verdict]]], line: AccessLogLine) -> None:
        """Make the refunds for the response, and record when leases end."""
        unearned = "success" if line.status >= 400 and line.status != 429 else "failure"
        verdicts = [verdict for _, several in decided for verdict in several]
        owners = [rule for charges, _ in decided for rule, _ in charges.template.owners]
        back = [
            verdict
            for rule, verdict in zip(owners, verdicts, strict=True)
            if rule.charge_when == unearned and verdict.spent
        ]
        if back:
            decision = self.decision()
            decision.binding  # noqa: B018  computed before the refunds, as at entry points
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
    """Return for each charge whether it was rejected, see `CounterStates`."""
    return [wait > 0 or wait == -1 for wait in waits]
