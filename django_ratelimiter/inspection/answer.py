"""`explain`: why the limiter allows or rejects a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django.utils import translation

from ..conf import django_setting, is_secret, settings
from ..engine.base import Verdict
from ..exceptions import EngineUnavailable
from ..identity import digest
from ..limiter.charges import limit_request, why_uncharged
from ..limiter.templates import RuleCharge, value_of
from ..models import TierAssignment
from ..rules.cache import access_list
from ..rules.records import Facts, LimitRecord, RuleRecord
from ..rules.tiers import callers_differ
from ..values.access import NOBODY
from ..values.partitions import is_address
from .asking import names_caller
from .counters import Counter, rejections_logged
from .entry_points import EntryPoint, Trial, run_trial
from .explanation import (
    AccessExplanation,
    Bypass,
    CallerResponse,
    Explanation,
    LoggedRejection,
    Reason,
    Rights,
    RuleExplanation,
    rights_of,
)
from .question import Question
from .references import Rejected
from .request import build_request, language_of, resolve_view
from .tier import TierExplanation
from .words import doubts_in_words, reason_in_words, unread_in_words


def explain(question: Question, reader: Any = None, logged: Rejected | None = None) -> Explanation:
    """Return what the limiter would decide now, and why, computed by the code that decides requests. Charges nothing.

    reader: the user who reads it; `None` = may see everything. If they may not view access entries, it is as if there
    were none: each part would reveal a matching one. logged: the rejection in question. Raises QuestionError if the
    question cannot be answered, and CallerHidden if it names a caller, which the reader must not do.
    """
    sees = rights_of(reader)
    sees.check(question)
    http = build_request(question)
    with translation.override(language_of(http)):
        resolve_view(http)
        trial = run_trial(question, http, access_list() if sees.entries else NOBODY)
    is_same = logged is not None and sees.counters and _is_same_caller(logged, trial)
    is_anybody = logged is not None and not is_same and not names_caller(question)
    is_unchecked = not question.user and (
        "HTTP_AUTHORIZATION" in http.META or django_setting("SESSION_COOKIE_NAME") in http.COOKIES
    )
    unknown = _unknown(trial, is_anybody=is_anybody, is_unchecked=is_unchecked)
    tier = _explain_tier(trial) if sees.tiers else TierExplanation()
    if logged and is_anybody and tier.kind in ("default", "none"):
        names_nobody = logged.is_shared or logged.is_missing or logged.problem
        tier = replace(tier, kind="" if names_nobody else "unknown")
    explaining = _Explaining(trial, sees, tier, unknown, logged)
    rules = tuple(map(explaining.rule, trial.rules.rules))
    rejection = logged and _explain_logged(logged, rules, sees, trial, is_same)
    doubts = doubts_in_words(
        hides_entries=not sees.entries,
        problem=trial.problem,
        unknown=unknown,
        is_unchecked=is_unchecked,
        has_view=http.resolver_match is not None or trial.bypass == "redirect",
    )
    return Explanation(
        request=_facts(trial),
        version=trial.rules.version.number,
        bypass=_bypass(trial),
        access=AccessExplanation.of(next((each.access for each in trial.entry_points if each.access), None)),
        tier=tier,
        identities=_identities(trial) if sees.counters else {},
        unknown=unknown,
        doubts=tuple(filter(None, (unread_in_words(rejection), *doubts))),
        hidden=sees.hidden,
        rules=rules,
        left_out=trial.rules.left_out,
        in_code=trial.in_code,
        response=_response(trial) if sees.counters else None,
        logged=rejection,
    )


def _response(trial: Trial) -> CallerResponse:
    decision = trial.decision
    rejection = None if decision.allowed else decision.rejection
    rule = rejection.binding.rule.slug if rejection and rejection.binding else ""
    return CallerResponse(decision.allowed, rejection and rejection.status, rule, trial.delay, decision.degraded)


def _bypass(trial: Trial) -> Bypass:
    """Return why no entry point tests any rule; "" = one does."""
    bypasses = [point.bypass for point in trial.entry_points] or [trial.bypass]
    return "" if "" in bypasses else bypasses[-1]


def _facts(trial: Trial) -> Facts:
    return trial.entry_points[-1].request.facts if trial.entry_points else limit_request(trial.http).facts


class _Explaining(NamedTuple):
    """What the explanations of all rules share."""

    trial: Trial
    sees: Rights
    tier: TierExplanation
    unknown: tuple[str, ...]
    logged: Rejected | None

    def rule(self, rule: RuleRecord) -> RuleExplanation:
        """Return what this rule decides."""
        for point in self.trial.entry_points:
            counters = tuple(self._counter(*each) for each in point.charges if each[0].rule is rule)
            if counters:
                return self._applying(rule, point, counters)
        reason = _reason(rule, self.trial)
        missing = _missing(rule, _nearest(rule, self.trial)) if reason == "missing" else ()
        lacks = self._lacks(rule, missing) if reason == "missing" else ()
        why = reason_in_words(reason, rule, _facts(self.trial), self.tier, missing, lacks)
        rejects = False if self.sees.counters else None
        return RuleExplanation(rule, rule.mode, False, reason, why, missing, lacks, rejects=rejects)

    def _applying(self, rule: RuleRecord, point: EntryPoint, counters: tuple[Counter, ...]) -> RuleExplanation:
        tier, missing = point.entitlement.tier, _missing(rule, point)
        has_rows = self.sees.tiers and tier is not None and tier.slug in rule.limits
        return RuleExplanation(
            rule,
            rule.mode,
            applies=True,
            missing=missing,
            lacks=self._lacks(rule, missing),
            rows=tier.slug if has_rows and tier else "",
            rejects=any(each.allowed is False for each in counters) if self.sees.counters else None,
            counters=counters if self.sees.counters else (),
        )

    def _counter(self, charged: RuleCharge, peeked: Verdict | None) -> Counter:
        rule, tier, charge = charged
        digest = rule.digest_in(charge.key)
        logged = self.logged is not None and self.logged.is_of(rule.slug, digest)
        record = LimitRecord(charge.limit)
        return Counter(rule, tier.slug if tier else "", record, charge, digest, peeked, logged=logged)

    def _lacks(self, rule: RuleRecord, missing: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that a rule counts by and that are not known here."""
        instead = ("ip",) if missing and rule.missing_partition == "ip" else ()
        return tuple(name for name in (*rule.partition_by, *instead) if name in self.unknown)


def _explain_logged(
    logged: Rejected, explained: Sequence[RuleExplanation], sees: Rights, trial: Trial, is_same: bool
) -> LoggedRejection:
    if not sees.counters:
        return LoggedRejection(logged.reference, None, problem=logged.problem)
    counters, problem = [counter for each in explained for counter in each.counters], logged.problem
    try:
        rejections = rejections_logged(logged.is_of, trial.rules, counters)
    except EngineUnavailable as error:
        rejections, problem = [], str(error)
    found = any(each.logged for each in counters)
    return LoggedRejection(logged.reference, found, tuple(rejections), is_same, problem)


def _is_same_caller(logged: Rejected, trial: Trial) -> bool:
    """Return whether the rule that rejected counts this caller so, whether it is tested here or not."""
    rules = [rule for rule in trial.rules.rules if rule.slug == logged.reference.rule and not rule.is_shared]
    values = [value_of(rule, point.request) for rule in rules for point in trial.entry_points]
    return any(value is not None and logged.reference.is_of(digest(value)) for value in values)


def _reason(rule: RuleRecord, trial: Trial) -> Reason:
    """Return the first condition that does not match, at the last entry point that tested the rule."""
    if not trial.entry_points:
        return trial.bypass
    point = _nearest(rule, trial)
    if point.bypass:
        return point.bypass
    if rule.is_off:
        return "off"
    mismatch = rule.mismatch(point.request.facts)
    if mismatch == "scope" and rule.scope in trial.unreached:
        return "rejected earlier"
    return mismatch or why_uncharged(rule, point.entitlement, point.request) or "rejected earlier"


def _nearest(rule: RuleRecord, trial: Trial) -> EntryPoint:
    """Return the last entry point at which a rule matches, else the last one."""
    met = [point for point in trial.entry_points if not point.bypass and not rule.mismatch(point.request.facts)]
    return met[-1] if met else trial.entry_points[-1]


def _missing(rule: RuleRecord, point: EntryPoint) -> tuple[str, ...]:
    identity = point.request.identity
    return tuple(name for name in rule.partition_by if identity is not None and identity.value(name) is None)


def _explain_tier(trial: Trial) -> TierExplanation:
    """Return the tier at the last entry point, and the row or the setting that it comes from."""
    point = trial.entry_points[-1] if trial.entry_points else None
    if point is None or point.bypass or not callers_differ(trial.rules):
        return TierExplanation()
    granted, reasons = point.entitlement, dict(point.reasons)
    rows = TierAssignment.objects.select_related("tier").in_bulk([pk for pk in reasons.values() if pk])
    more, own = (rows.get(reasons.pop(name, 0)) for name in ("multiplier", "anchor"))
    kind, row = next(((kind, rows.get(pk)) for kind, pk in reasons.items()), ("default", None))
    if granted.tier is None:
        kind = "none"
    return TierExplanation.of(kind, granted, row, more, own)


def _concerned(trial: Trial) -> list[RuleRecord]:
    """Return the rules whose conditions match the request, whoever the caller is."""
    asked = [point.request.facts for point in trial.entry_points if not point.bypass]
    return [rule for rule in trial.rules.rules if not rule.is_off and any(not rule.mismatch(facts) for facts in asked)]


def _identities(trial: Trial) -> dict[str, str | None]:
    identity = trial.entry_points[-1].request.identity if trial.entry_points else None
    names = dict.fromkeys(name for rule in _concerned(trial) for name in rule.partition_by)
    values = {name: identity.value(name) for name in names} if identity is not None else {}
    return {name: "…" if value and is_secret(name) else value for name, value in values.items()}


def _unknown(trial: Trial, *, is_anybody: bool, is_unchecked: bool) -> tuple[str, ...]:
    """Return the names of values that rules need here and that only a real request has.

    is_anybody: the question is about a rejected request without its caller, so what it lacks is not known, either.
    is_unchecked: the request has credentials that only the site can check, so its user is not known.
    """
    names: dict[str, None] = {}
    for rule in _concerned(trial):
        lost = _missing(rule, _nearest(rule, trial))
        names |= dict.fromkeys((*lost, "ip") if lost and rule.missing_partition == "ip" else lost)
    known = trial.question
    names = {each: None for each in names if each not in known.identities}
    return tuple(each for each in names if is_anybody or (each == "user" and is_unchecked) or _is_unknown(each, known))


def _is_unknown(name: str, question: Question) -> bool:
    if is_address(name):
        return not question.ip
    if name == "host":
        return not question.names_host
    return name == "session" or name.startswith("field:") or name in settings.IDENTITIES
