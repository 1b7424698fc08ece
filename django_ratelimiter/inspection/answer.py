"""`explain`: why the limiter allows or rejects a request."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import translation

from ..backend import get_engine
from ..conf import settings
from ..engine.base import NEVER, Verdict
from ..headers import refusal, write_fields
from ..identity import Identity
from ..limiter.charges import limit_request, value_of, why_uncharged
from ..limiter.refunds import unearned_results
from ..limiter.templates import RuleCharge
from ..models import TierAssignment
from ..models.tiers import SUBJECTS
from ..rules.cache import access_list
from ..rules.formatting import limit_in_words
from ..rules.records import Facts, LimitRecord, RuleRecord
from ..values.access import NOBODY, AccessList
from ..values.partitions import is_address
from .entry_points import Door, Passage, pass_doors
from .explanation import (
    Bypass,
    ClientResponse,
    CounterState,
    Explanation,
    Reason,
    RuleExplanation,
    TierExplanation,
)
from .question import Question
from .request import BuiltRequest, build_request, find_caller, find_view, has_limiter, language_of
from .views import checks_credentials


def explain(question: Question, *, heeds_access: bool = True) -> Explanation:
    """Return what the limiter would decide now, and why, computed by the code that decides requests. Charges nothing.

    heeds_access: False = as if there were no access entries. Raises QuestionError if the question cannot be answered.
    """
    entries = access_list() if heeds_access else NOBODY
    http, passage, response = _answered(question, entries)
    rules = tuple(_explain_rule(rule, passage) for rule in (*passage.rules.rules, *passage.coded))
    return Explanation(
        facts=_facts(http, passage),
        version=passage.rules.version.number,
        doors=tuple(each.name for each in passage.doors),
        bypass=_bypass(passage),
        access=next((each.access for each in passage.doors if each.access), None),
        tier=_explain_tier(passage),
        rules=rules,
        left_out=passage.rules.left_out,
        response=response,
        unknown=_unknown(question, http, passage),
        unchecked=not question.user and "HTTP_AUTHORIZATION" in http.META,
        identities=_identities(passage),
        unexplained=passage.unexplained,
        problem=passage.problem,
        with_token=_with_token(question, http, entries, response),
    )


def _answered(
    question: Question, entries: AccessList, *, has_token: bool = False
) -> tuple[BuiltRequest, Passage, ClientResponse]:
    """Return the request, its decisions, and its response. has_token: its user comes with a token."""
    http = build_request(question)
    with translation.override(language_of(http)):
        find_view(http)
        caller = replace(find_caller(question, http), has_token=has_token)
        passage = pass_doors(question, http, caller, entries)
        return http, passage, _response(question, http, passage)


def _with_token(
    question: Question, http: BuiltRequest, entries: AccessList, response: ClientResponse
) -> ClientResponse | None:
    """Return the response to a user with a token, which the middleware cannot check, if it differs."""
    if not question.user or "HTTP_AUTHORIZATION" in http.META or not checks_credentials(http):
        return None
    other = _answered(question, entries, has_token=True)[2]
    is_alike = other.allowed == response.allowed and (other.allowed or other.binding == response.binding)
    return None if is_alike else other


def _bypass(passage: Passage) -> Bypass:
    """Return why no entry point tests any rule; "" = one does."""
    bypasses = [door.bypass for door in passage.doors] or [passage.bypass]
    return "" if "" in bypasses else bypasses[-1]


def _facts(http: BuiltRequest, passage: Passage) -> Facts:
    return passage.doors[-1].request.facts if passage.doors else limit_request(http).facts


def _explain_rule(rule: RuleRecord, passage: Passage) -> RuleExplanation:
    for door in passage.doors:
        places = [place for place, each in enumerate(door.charges) if each.rule is rule]
        if places:
            tier = door.entitlement.tier
            return RuleExplanation(
                rule,
                applies=True,
                reason="",
                door=door.name,
                missing=_missing(rule, door),
                rows=tier.slug if tier and tier.slug in rule.limits else "",
                value=value_of(rule, door.request) or "",
                counters=tuple(_counter(door.charges[place], door.peeked[place]) for place in places),
            )
    reason = _reason(rule, passage)
    lacks = reason == "missing"
    return RuleExplanation(
        rule, applies=False, reason=reason, missing=_missing(rule, _nearest(rule, passage)) if lacks else ()
    )


def _reason(rule: RuleRecord, passage: Passage) -> Reason:
    """Return the first condition that does not match, at the last entry point that tested the rule."""
    if not passage.doors:
        return passage.bypass
    door = _nearest(rule, passage)
    if door.bypass:
        return door.bypass
    if rule.is_off:
        return "off"
    mismatch = rule.mismatch(door.request.facts)
    if mismatch == "scope" and rule.scope in passage.unreached:
        return "rejected earlier"
    return mismatch or why_uncharged(rule, door.entitlement, door.request) or "rejected earlier"


def _nearest(rule: RuleRecord, passage: Passage) -> Door:
    """Return the last entry point at which a rule matches, else the last one."""
    met = [door for door in passage.doors if not door.bypass and not rule.mismatch(door.request.facts)]
    return met[-1] if met else passage.doors[-1]


def _missing(rule: RuleRecord, door: Door) -> tuple[str, ...]:
    for coded in door.request.inline:
        if coded.rule is rule:
            return () if coded.value is not None else rule.partition_by
    identity = door.request.identity
    return tuple(name for name in rule.partition_by if identity is not None and identity.value(name) is None)


def _counter(charged: RuleCharge, peeked: Verdict | None) -> CounterState:
    charge, limit = charged.charge, charged.charge.limit
    engine = get_engine()
    stored_name = getattr(getattr(engine, "engine", engine), "stored_name", None)
    known: dict[str, Any] = {
        "words": limit_in_words(LimitRecord(limit)),
        "key": stored_name(charge) if stored_name else charge.key + limit.tag,
        "digest": charge.key.removeprefix(f"{charged.rule.slug}:").partition(":")[0],
        "quota": limit.capacity,
        "cost": min(charge.cost, limit.capacity + 1),
        "never": charge.cost == NEVER or charge.cost > limit.capacity,
    }
    if peeked is None:
        return CounterState(**known)
    return CounterState(
        **known,
        used=limit.capacity - peeked.remaining,
        left=peeked.remaining,
        allowed=peeked.allowed,
        reset_at=_moment(peeked, peeked.reset_after),
        retry_at=_moment(peeked, peeked.retry_after),
        soft_exceeded=peeked.soft_exceeded,
        delay=peeked.delay,
    )


def _moment(verdict: Verdict, seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(verdict.at_us / 1_000_000 + seconds, UTC) if seconds else None


def _explain_tier(passage: Passage) -> TierExplanation:
    """Return the tier at the last entry point, and the row or the setting that it comes from."""
    door = passage.doors[-1] if passage.doors else None
    if door is None or door.bypass or not passage.rules.tiers:
        return TierExplanation("")
    tier, multiplier = door.entitlement
    if tier is None:
        identity = door.request.identity
        unchecked = door.request.before_authentication and identity and identity.awaits_authentication
        return TierExplanation("unchecked" if unchecked else "none")
    if door.assignment is None:
        identity = door.request.identity
        resolves = settings.TIER_RESOLVER is not None and identity and identity.resolve_tier() == tier.slug
        return TierExplanation("resolver" if resolves else "default", tier.slug, tier.name, multiplier)
    row = TierAssignment.objects.filter(pk=door.assignment).select_related("tier").first()
    subject = next((name for name in SUBJECTS if getattr(row, f"{name}_id", getattr(row, name, None))), "")
    return TierExplanation(
        "assignment",
        tier.slug,
        tier.name,
        multiplier,
        door.assignment,
        subject,
        str(getattr(row, subject)) if subject else "",
        row.starts_at if row else None,
        row.ends_at if row else None,
    )


def _response(question: Question, http: BuiltRequest, passage: Passage) -> ClientResponse:
    """Return the response of the entry points, made by the code that makes responses."""
    decision, status = passage.decision, question.status
    if http.gateway is not None and passage.response is not None:  # from the gateway's view, and complete
        return _as_client_gets(passage, passage.response, passage.response.status_code, is_ours=True)
    is_ours, response = False, passage.response
    if response is not None and not passage.is_rejected:
        status, response = response.status_code, None
    is_known = response is not None or not passage.is_rejected
    if response is None and passage.is_rejected and _is_answered_by_us(passage):
        response, is_ours, is_known = refusal(http, decision), True, True
    if response is None:
        if isinstance(passage.error, PermissionDenied):
            status, is_known = 403, True
        elif passage.is_rejected:
            status = 500
        response = HttpResponse(status=status)
        del response["Content-Type"]
    if has_limiter():
        for result in unearned_results(http, response):
            if result.verdict is not None:
                result.verdict.mark_refunded()
        write_fields(http, response, decision)
    known = response.status_code if passage.is_rejected and is_known else None
    return _as_client_gets(passage, response, known, is_ours=is_ours, is_known=is_known)


def _as_client_gets(
    passage: Passage, response: HttpResponseBase, status: int | None, *, is_ours: bool, is_known: bool = True
) -> ClientResponse:
    binding = passage.decision.binding
    return ClientResponse(
        allowed=not passage.is_rejected,
        status=status,
        fields=dict(response.items()),
        body=getattr(response, "content", b"").decode("utf-8", "replace"),
        is_ours=is_ours,
        binding=binding.rule.slug if binding and passage.decision.access is None else "",
        delay=passage.delay,
        degraded=passage.decision.degraded,
        error="" if is_known else type(passage.error).__qualname__,
    )


def _is_answered_by_us(passage: Passage) -> bool:
    """Return whether our middleware responds: it has rejected the request, or handles the view's exception."""
    if passage.error is None:
        return True
    return has_limiter() and getattr(passage.error, "decision", None) is passage.decision


def _concerned(passage: Passage) -> list[RuleRecord]:
    """Return the rules whose conditions match the request, whoever the caller is."""
    asked = [door.request.facts for door in passage.doors if not door.bypass]
    return [
        rule for rule in passage.rules.rules if not rule.is_off and any(not rule.mismatch(facts) for facts in asked)
    ]


def _identities(passage: Passage) -> dict[str, str | None]:
    identity = passage.doors[-1].request.identity if passage.doors else None
    names = dict.fromkeys(name for rule in _concerned(passage) for name in rule.partition_by)
    return {name: identity.value(name) for name in names} if identity is not None else {}


def _unknown(question: Question, http: BuiltRequest, passage: Passage) -> tuple[str, ...]:
    """Return the names of values that rules need here and that only a real request has."""
    names: dict[str, None] = {}
    for rule in _concerned(passage):
        names |= dict.fromkeys(rule.partition_by)
        if rule.missing_partition == "ip" and _missing(rule, _nearest(rule, passage)):
            names["ip"] = None
    return tuple(name for name in names if name not in question.identities and _is_unknown(name, question, http))


def _is_unknown(name: str, question: Question, http: BuiltRequest) -> bool:
    if is_address(name):
        return not question.ip
    if name.startswith("field:"):
        return not (question.body or question.gateway)  # at a gateway, the request has none
    return name in settings.IDENTITIES and _reads_body(name, http)


def _reads_body(name: str, http: BuiltRequest) -> bool:
    """Return whether the project's code reads a body, but the question has none."""
    http.forget_body()
    Identity(http).value(name)
    return http.body_missed
