"""`explain`: why the limiter allows or rejects a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import translation

from ..conf import is_secret, settings
from ..engine.base import Verdict
from ..exceptions import EngineUnavailable
from ..headers import rejection_response, write_fields
from ..identity import Identity, digest
from ..limiter.charges import limit_request, value_of, why_uncharged
from ..limiter.refunds import unearned_results
from ..limiter.templates import RuleCharge
from ..models import TierAssignment
from ..rules.cache import access_list
from ..rules.records import Facts, LimitRecord, RuleRecord
from ..rules.tiers import callers_differ
from ..values.access import NOBODY, AccessList
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
from .references import ParsedRejection
from .request import BuiltRequest, build_request, find_caller, find_view, has_limiter, language_of
from .tier import TierExplanation
from .views import checks_credentials
from .words import doubts_in_words, reason_in_words, unread_in_words


def explain(question: Question, reader: Any = None, logged: ParsedRejection | None = None) -> Explanation:
    """Return what the limiter would decide now, and why, computed by the code that decides requests. Charges nothing.

    reader: the user who reads it; `None` = may see everything. If they may not view access entries, it is as if there
    were none: each part would reveal a matching one. logged: the rejection in question. Raises QuestionError if the
    question cannot be answered, and CallerHidden if it names a caller, which the reader must not do.
    """
    sees = rights_of(reader)
    sees.check(question)
    entries = access_list() if sees.entries else NOBODY
    http, trial, response = _answered(question, entries)
    is_same = logged is not None and sees.counters and _is_same_caller(logged, trial)
    is_anybody = logged is not None and not is_same and not names_caller(question)
    unknown = _unknown(question, http, trial, is_anybody=is_anybody)
    tier = _explain_tier(trial) if sees.tiers else TierExplanation()
    if logged and is_anybody and tier.kind in ("default", "none"):
        tier = replace(tier, kind="" if logged.names_nobody or logged.problem else "unknown")
    with_token = _with_token(question, http, entries, response) if sees.counters else None
    explaining = _Explaining(trial, sees, tier, unknown, logged)
    rules = tuple(map(explaining.rule, (*trial.rules.rules, *trial.coded)))
    rejection = logged and _explain_logged(logged, rules, sees, trial, is_same)
    doubts = doubts_in_words(
        hides_entries=not sees.entries,
        problem=trial.problem,
        unknown=unknown,
        is_unchecked=not question.user and "HTTP_AUTHORIZATION" in http.META,
        depends_on_token=with_token is not None,
        unexplained=trial.unexplained,
        error=response.error,
    )
    return Explanation(
        request=_facts(http, trial),
        version=trial.rules.version.number,
        bypass=_bypass(trial),
        access=AccessExplanation.of(next((each.access for each in trial.entry_points if each.access), None)),
        entry_points=tuple(each.name for each in trial.entry_points),
        tier=tier,
        identities=_identities(trial) if sees.counters else {},
        unknown=unknown,
        doubts=tuple(filter(None, (unread_in_words(rejection), *doubts))),
        hidden=sees.hidden,
        rules=rules,
        left_out=trial.rules.left_out,
        response=response if sees.counters else None,
        with_token=with_token,
        logged=rejection,
    )


def _answered(
    question: Question, entries: AccessList, *, has_token: bool = False
) -> tuple[BuiltRequest, Trial, CallerResponse]:
    """Return the request, its decisions, and its response. has_token: its user comes with a token."""
    http = build_request(question)
    with translation.override(language_of(http)):
        find_view(http)
        caller = replace(find_caller(question, http), has_token=has_token)
        trial = run_trial(question, http, caller, entries)
        return http, trial, _response(question, http, trial)


def _with_token(
    question: Question, http: BuiltRequest, entries: AccessList, response: CallerResponse
) -> CallerResponse | None:
    """Return the response to a user with a token, which the middleware cannot check, if it differs."""
    if not question.user or "HTTP_AUTHORIZATION" in http.META or not checks_credentials(http):
        return None
    other = _answered(question, entries, has_token=True)[2]
    is_alike = other.allowed == response.allowed and (other.allowed or other.binding == response.binding)
    return None if is_alike else other


def _bypass(trial: Trial) -> Bypass:
    """Return why no entry point tests any rule; "" = one does."""
    bypasses = [point.bypass for point in trial.entry_points] or [trial.bypass]
    return "" if "" in bypasses else bypasses[-1]


def _facts(http: BuiltRequest, trial: Trial) -> Facts:
    return trial.entry_points[-1].request.facts if trial.entry_points else limit_request(http).facts


class _Explaining(NamedTuple):
    """What the explanations of all rules share."""

    trial: Trial
    sees: Rights
    tier: TierExplanation
    unknown: tuple[str, ...]
    logged: ParsedRejection | None

    def rule(self, rule: RuleRecord) -> RuleExplanation:
        """Return what this rule decides."""
        for point in self.trial.entry_points:
            counters = tuple(self._counter(*each) for each in point.charges if each[0].rule is rule)
            if counters:
                return self._applying(rule, point, counters)
        reason = _reason(rule, self.trial)
        missing = _missing(rule, _nearest(rule, self.trial)) if reason == "missing" else ()
        lacks = self._lacks(rule, missing) if reason == "missing" else ()
        why = reason_in_words(reason, rule, _facts(self.trial.http, self.trial), self.tier, missing, lacks)
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
            entry_point=point.name,
            rows=tier.slug if has_rows and tier else "",
            value=value_of(rule, point.request) or "" if self.sees.counters else "",
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
    logged: ParsedRejection, explained: Sequence[RuleExplanation], sees: Rights, trial: Trial, is_same: bool
) -> LoggedRejection:
    if not sees.counters:
        return LoggedRejection(logged.rules, logged.rule, logged.digest, None, (), problem=logged.problem)
    counters, problem = [counter for each in explained for counter in each.counters], logged.problem
    try:
        rejections = rejections_logged(logged.is_of, trial.rules, counters)
    except EngineUnavailable as error:
        rejections, problem = [], str(error)
    found = any(each.logged for each in counters)
    return LoggedRejection(logged.rules, logged.rule, logged.digest, found, tuple(rejections), is_same, problem)


def _is_same_caller(logged: ParsedRejection, trial: Trial) -> bool:
    """Return whether a rule that may have rejected counts this caller so, whether it is tested here or not."""
    values = [
        (rule.slug, value_of(rule, point.request))
        for rule in (*trial.rules.rules, *trial.coded)
        for point in trial.entry_points
        if rule.slug in logged.rules and not rule.is_shared
    ]
    return any(value is not None and logged.is_of(slug, digest(value)) for slug, value in values)


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
    for coded in point.request.inline:
        if coded.rule is rule:
            return () if coded.value is not None else rule.partition_by
    identity = point.request.identity
    return tuple(name for name in rule.partition_by if identity is not None and identity.value(name) is None)


def _explain_tier(trial: Trial) -> TierExplanation:
    """Return the tier at the last entry point, and the row or the setting that it comes from."""
    point = trial.entry_points[-1] if trial.entry_points else None
    if point is None or point.bypass or not callers_differ(trial.rules):
        return TierExplanation()
    granted, identity, reasons = point.entitlement, point.request.identity, dict(point.reasons)
    rows = TierAssignment.objects.select_related("tier").in_bulk([pk for pk in reasons.values() if pk])
    more, own = (rows.get(reasons.pop(name, 0)) for name in ("multiplier", "anchor"))
    kind, row = next(((kind, rows.get(pk)) for kind, pk in reasons.items()), ("default", None))
    if granted.tier is None:
        unchecked = point.request.before_authentication and identity and identity.awaits_authentication
        kind = "unchecked" if unchecked else "none"
    return TierExplanation.of(kind, granted, row, more, own)


def _response(question: Question, http: BuiltRequest, trial: Trial) -> CallerResponse:
    """Return the response of the entry points, made by the code that makes responses."""
    decision, status = trial.decision, trial.status or question.status
    if http.gateway is not None and trial.response is not None:  # from the gateway's view, and complete
        return _as_caller_gets(trial, trial.response, trial.response.status_code, is_ours=True)
    is_ours, response = False, trial.response
    if response is not None and not trial.is_rejected:
        status, response = response.status_code, None
    is_known = response is not None or not trial.is_rejected
    if response is None and trial.is_rejected and _is_answered_by_us(trial):
        response, is_ours, is_known = rejection_response(http, decision), True, True
    if response is None:
        if isinstance(trial.error, PermissionDenied):
            status, is_known = 403, True
        elif trial.is_rejected:
            status = 500
        response = HttpResponse(status=status)
        del response["Content-Type"]
    if has_limiter():
        for result in unearned_results(http, response):
            if result.verdict is not None:
                result.verdict.mark_refunded()
        write_fields(http, response, decision)
    known = trial.status if not trial.is_rejected else response.status_code if is_known else None
    return _as_caller_gets(trial, response, known, is_ours=is_ours, is_known=is_known)


def _as_caller_gets(
    trial: Trial, response: HttpResponseBase, status: int | None, *, is_ours: bool, is_known: bool = True
) -> CallerResponse:
    binding = trial.decision.binding
    return CallerResponse(
        allowed=not trial.is_rejected,
        status=status,
        fields=dict(response.items()),
        body=getattr(response, "content", b"").decode("utf-8", "replace"),
        is_ours=is_ours,
        binding=binding.rule.slug if binding and trial.decision.access is None else "",
        delay=trial.delay,
        degraded=trial.decision.degraded,
        error="" if is_known else type(trial.error).__qualname__,
    )


def _is_answered_by_us(trial: Trial) -> bool:
    """Return whether our middleware responds: it has rejected the request, or handles the view's exception."""
    if trial.error is None:
        return True
    return has_limiter() and getattr(trial.error, "decision", None) is trial.decision


def _concerned(trial: Trial) -> list[RuleRecord]:
    """Return the rules whose conditions match the request, whoever the caller is."""
    asked = [point.request.facts for point in trial.entry_points if not point.bypass]
    return [rule for rule in trial.rules.rules if not rule.is_off and any(not rule.mismatch(facts) for facts in asked)]


def _identities(trial: Trial) -> dict[str, str | None]:
    identity = trial.entry_points[-1].request.identity if trial.entry_points else None
    names = dict.fromkeys(name for rule in _concerned(trial) for name in rule.partition_by)
    values = {name: identity.value(name) for name in names} if identity is not None else {}
    return {name: "…" if value and is_secret(name) else value for name, value in values.items()}


def _unknown(question: Question, http: BuiltRequest, trial: Trial, *, is_anybody: bool) -> tuple[str, ...]:
    """Return the names of values that rules need here and that only a real request has.

    is_anybody: the question is about a rejected request without its caller, so what it lacks is not known, either.
    """
    names: dict[str, None] = {}
    lacking = [rule for rule in trial.coded if _missing(rule, _nearest(rule, trial))]
    for rule in [*_concerned(trial), *lacking]:
        names |= dict.fromkeys(rule.partition_by)
        if rule.missing_partition == "ip" and _missing(rule, _nearest(rule, trial)):
            names["ip"] = None
    lost = {name for rule in _concerned(trial) for name in _missing(rule, _nearest(rule, trial)) if is_anybody}
    known = question.identities
    return tuple(each for each in names if each not in known and (each in lost or _is_unknown(each, question, http)))


def _is_unknown(name: str, question: Question, http: BuiltRequest) -> bool:
    if is_address(name):
        return not question.ip
    if name == "host":
        return not question.names_host
    if name.startswith("field:"):
        return not (question.body or question.gateway)  # at a gateway, the request has none
    return name in settings.IDENTITIES and _reads_body(name, http)


def _reads_body(name: str, http: BuiltRequest) -> bool:
    """Return whether the project's code reads a body, but the question has none."""
    http.forget_body()
    Identity(http).value(name)
    return http.body_missed
