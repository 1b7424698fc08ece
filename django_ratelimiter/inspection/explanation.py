"""`explain`: why the limiter allows or rejects a request, and what each rule decides; as data, and as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from django.utils import translation
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from ..conf import django_setting, is_secret, settings
from ..decision import Owner
from ..engine.base import Charge, Verdict
from ..limiter.charges import why_uncharged
from ..models import AccessEntry, TierAssignment
from ..rules.records import Facts, LimitRecord, RejectedRule, RuleRecord
from ..rules.tiers import callers_differ
from ..values.partitions import is_address
from .counters import Counter
from .entry_points import EntryPoint, Trial, build_request, language_of, resolve_view, run_trial
from .grounds import TierExplanation, row_of
from .question import Question, as_counted, names_caller
from .references import Rejected
from .words import BYPASSES, Bypass, Reason, counter_in_words, exempt_in_words, reason_in_words, tier_in_words


@dataclass(frozen=True, slots=True)
class Matched:
    """A rule that is tested for the request, and its counters."""

    MEMBERS = ("rule", "lacks", "rejects", "counters")

    rule: RuleRecord
    lacks: tuple[str, ...]  # the names of values that are not known here, and that matter
    counters: tuple[Counter, ...]

    @property
    def rejects(self) -> bool:
        """True if it would reject the request, also in shadow."""
        return any(each.allowed is False for each in self.counters)


class Unmatched(NamedTuple):
    """A rule that is not tested for the request. reason: the first condition that does not match; why: in words."""

    rule: RuleRecord
    reason: Reason
    why: str
    lacks: tuple[str, ...]  # see `Matched`


class CallerResponse(NamedTuple):
    """What the caller would get now, as far as rules and access entries decide."""

    allowed: bool
    status: int | None  # of a rejection, unless your own RESPONSE has another; `None` = the view's own
    binding: str  # the rule that rejects
    delay: float  # seconds before the response
    degraded: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the limiter allows or rejects a request."""

    MEMBERS = (
        *("request", "version", "bypass", "access", "tier", "identities", "unknown", "doubts", "matched", "unmatched"),
        *("left_out", "in_code", "response", "logged"),
    )

    request: Facts
    version: int
    bypass: Bypass  # why no rule is tested; empty = rules are
    access: AccessEntry | None  # the access entry that decides
    tier: TierExplanation
    identities: Mapping[str, str | None]  # the caller's values, if rules need them; … = a credential, not shown
    doubts: tuple[str, ...]  # what cannot be known here, in words
    matched: tuple[Matched, ...]
    unmatched: tuple[Unmatched, ...]
    left_out: tuple[RejectedRule, ...]  # rules that are not in force at all
    in_code: tuple[str, ...]  # the view's own limits, which are not decided here
    response: CallerResponse
    logged: Rejected | None  # the rejection that the reference names

    @property
    def rules(self) -> tuple[Matched | Unmatched, ...]:
        """All rules that are in force."""
        return *self.matched, *self.unmatched

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of values that matter and are not known."""
        return tuple(dict.fromkeys(name for each in self.rules for name in each.lacks))

    @property
    def is_degraded(self) -> bool:
        """True if Redis did not answer."""
        return self.response.degraded or bool(self.logged and self.logged.problem)

    @property
    def undecided(self) -> tuple[Matched | Unmatched, ...]:
        """The enforced rules that count by a value that is not known here: they may reject the request after all."""
        return tuple(each for each in self.rules if each.rule.mode == "enforce" and each.lacks)

    @property
    def is_certain(self) -> bool:
        """True if the request is rejected, or no limit is left that may do so."""
        return not self.response.allowed or not (self.response.degraded or self.undecided or self.in_code)


def explain(question: Question, logged: Rejected | None = None) -> Explanation:
    """Return what the limiter would decide now, and why, computed by the code that decides requests. Charges nothing.

    logged: the rejection in question. Raises QuestionError if the question cannot be answered.
    """
    question = as_counted(question)
    http = build_request(question)
    with translation.override(language_of(http)):
        resolve_view(http)
        trial = run_trial(question, http)
    is_anybody = logged is not None and not names_caller(question)
    is_unchecked = not question.user and (
        "HTTP_AUTHORIZATION" in http.META or django_setting("SESSION_COOKIE_NAME") in http.COOKIES
    )
    tier = _explain_tier(trial)
    if logged and is_anybody and tier.kind in ("default", "none"):
        names_nobody = logged.is_shared or logged.is_missing or logged.problem
        tier = replace(tier, kind="" if names_nobody else "unknown")
    is_unknown = partial(_is_unknown, question, is_anybody, is_unchecked)
    rules = [_explain_rule(rule, trial, tier.name, is_unknown, logged) for rule in trial.rules.rules]
    matched = tuple(each for each in rules if isinstance(each, Matched))
    is_found = any(counter.logged for each in matched for counter in each.counters)
    unknown = dict.fromkeys(name for each in rules for name in each.lacks)
    bypasses = [point.bypass for point in trial.entry_points] or [trial.bypass]
    return Explanation(
        request=trial.facts,
        version=trial.rules.version.number,
        bypass="" if "" in bypasses else bypasses[-1],
        access=row_of(next((each.access for each in trial.entry_points if each.access), None)),
        tier=tier,
        identities=_identities(trial),
        doubts=tuple(_doubts(trial, logged, unknown, is_unchecked=is_unchecked)),
        matched=matched,
        unmatched=tuple(each for each in rules if isinstance(each, Unmatched)),
        left_out=trial.rules.left_out,
        in_code=trial.in_code,
        response=_response(trial),
        logged=logged and replace(logged, found=is_found),
    )


def _doubts(trial: Trial, logged: Rejected | None, unknown: Collection[str], *, is_unchecked: bool) -> Iterator[str]:
    """Yield what cannot be known. is_unchecked: see `_is_unknown`."""
    if logged and logged.problem:
        yield _("Redis cannot be reached now, so the caller of the rejection cannot be found: %s") % logged.problem
    if problem := next((point.problem for point in trial.entry_points if point.problem), ""):
        yield _("Redis cannot be reached now, so the rules' failure policies decide: %s") % problem
    rejected = [] if trial.decision.allowed else [point.request.identity for point in trial.entry_points]
    if rejected and not trial.entry_points[-1].bypass and rejected[-1] and rejected[-1].is_exempt() is None:
        yield exempt_in_words(None)
    if unknown:
        yield _("Not known here, so treated as missing: %(names)s. Enter the values.") % {"names": ", ".join(unknown)}
    if is_unchecked:
        yield _(
            "Session cookies and the field Authorization are not checked here: this answer is for a caller "
            "who is not logged in. Enter the user to see the answer for that user."
        )
    if trial.http.resolver_match is None and trial.bypass != "redirect":
        yield _("No view answers this path. Rules count such requests, too.")


def _response(trial: Trial) -> CallerResponse:
    decision = trial.decision
    rejection = None if decision.allowed else decision.rejection
    rule = rejection.binding.rule.slug if rejection and rejection.binding else ""
    return CallerResponse(decision.allowed, rejection and rejection.status, rule, trial.delay, decision.degraded)


def _explain_rule(
    rule: RuleRecord, trial: Trial, tier: str, is_unknown: Callable[[str], bool], logged: Rejected | None
) -> Matched | Unmatched:
    """Return what this rule decides: at the first entry point that charges for it, if one does. tier: its name."""
    found = [(point, [each for each in point.charges if each[0].rule is rule]) for point in trial.entry_points]
    point, charged = next((each for each in found if each[1]), (_nearest(rule, trial), []))
    reason: Reason = "" if charged else _reason(rule, trial, point)
    missing = _missing(rule, point) if point and reason in ("", "missing") else ()
    in_place = ("ip",) if missing and rule.missing_partition == "ip" else ()
    lacks = tuple(name for name in (*missing, *in_place) if is_unknown(name))
    if not charged:
        why = reason_in_words(reason, rule, trial.facts, tier, missing, lacks)
        return Unmatched(rule, reason, why, lacks)
    return Matched(rule, lacks, tuple(_counter(*each, logged) for each in charged))


def _counter(owner: Owner, charge: Charge, peeked: Verdict | None, logged: Rejected | None) -> Counter:
    rule, digest = owner.rule, owner.rule.digest_in(charge.key)
    is_logged = logged is not None and logged.is_of(rule.slug, digest)
    return Counter(rule, str(owner.tier or ""), LimitRecord(charge.limit), charge, digest, peeked, logged=is_logged)


def _reason(rule: RuleRecord, trial: Trial, point: EntryPoint | None) -> Reason:
    """Return the first condition that does not match, at the last entry point that tested the rule."""
    if point is None:
        return trial.bypass
    if point.bypass:
        return point.bypass
    if rule.is_off:
        return "off"
    mismatch = rule.mismatch(point.request.facts)
    if mismatch == "scope" and rule.scope in trial.unreached:
        return "rejected earlier"
    return mismatch or why_uncharged(rule, point.entitlement, point.request) or "rejected earlier"


def _nearest(rule: RuleRecord, trial: Trial) -> EntryPoint | None:
    """Return the last entry point at which a rule matches, else the last one; `None` = there is none."""
    met = [point for point in trial.entry_points if not point.bypass and not rule.mismatch(point.request.facts)]
    return next(iter([*reversed(met), *reversed(trial.entry_points)]), None)


def _missing(rule: RuleRecord, point: EntryPoint) -> tuple[str, ...]:
    identity = point.request.identity
    return tuple(name for name in rule.partition_by if identity is not None and identity.value(name) is None)


def _explain_tier(trial: Trial) -> TierExplanation:
    """Return the tier at the last entry point, and the row or the setting that it comes from."""
    point = trial.entry_points[-1] if trial.entry_points else None
    if point is None or point.bypass or not callers_differ(trial.rules):
        return TierExplanation()
    rows = TierAssignment.objects.select_related("tier").in_bulk([pk for pk in point.reasons.values() if pk])
    return TierExplanation.of(point.entitlement, point.reasons, rows)


def _identities(trial: Trial) -> dict[str, str | None]:
    """Return the values by which rules count whose conditions match the request, whoever the caller is."""
    identity = trial.entry_points[-1].request.identity if trial.entry_points else None
    asked = [point.request.facts for point in trial.entry_points if not point.bypass]
    concerned = [rule for rule in trial.rules.rules if not rule.is_off and not all(map(rule.mismatch, asked))]
    names = dict.fromkeys(name for rule in concerned for name in rule.partition_by)
    values = {name: identity.value(name) for name in names} if identity is not None else {}
    return {name: "…" if value and is_secret(name) else value for name, value in values.items()}


def _is_unknown(question: Question, is_anybody: bool, is_unchecked: bool, name: str) -> bool:
    """Return whether a value that this request lacks is one that only a real request has.

    is_anybody: the question is about a rejected request without its caller, so what it lacks is not known, either.
    is_unchecked: the request has credentials that only the site can check, so its user is not known.
    """
    if name in question.identities:
        return False
    if is_anybody or (name in ("user", "customer") and is_unchecked):
        return True
    if is_address(name):
        return not question.ip
    if name == "host":
        return not question.names_host
    return name == "session" or name.startswith("field:") or name in settings.IDENTITIES


def headline_of(explanation: Explanation) -> str:
    """Return what the caller would get, in one line. It never says "allowed" if a limit cannot be decided here."""
    response, undecided = explanation.response, explanation.undecided
    if explanation.is_certain:
        return _answer_in_words(response)
    if response.degraded:
        text = _("Not known, as Redis cannot be reached. By the rules' failure policies: %s")
        return text % _answer_in_words(response)
    if undecided:
        values = {
            "names": ", ".join(dict.fromkeys(name for each in undecided for name in each.lacks)),
            "rules": ", ".join(each.rule.slug for each in undecided),
        }
        text = _("Not known without %(names)s, which these rules count by: %(rules)s. The others allow this request.")
        return text % values
    text = _("The rules allow this request. These limits in the view's code are not decided here: %s.")
    return text % ", ".join(explanation.in_code)


def _answer_in_words(response: CallerResponse) -> str:
    values = {"status": response.status, "rule": response.binding}
    if not response.allowed and response.binding:
        return _("Rejected with status %(status)s by %(rule)s.") % values
    if not response.allowed:
        return _("Rejected with status %(status)s.") % values
    if response.delay:
        return _("Allowed after a delay of %(seconds)s seconds.") % {"seconds": number_format(round(response.delay, 3))}
    return _("Allowed.")


def notes_of(explanation: Explanation) -> list[str]:
    """Return why no rule is tested, what cannot be known, and whether the counter of a logged rejection is shown."""
    why, entry = str(BYPASSES.get(explanation.bypass, "")), explanation.access
    if entry is not None:
        why += f" ({entry.subject}{': ' if entry.reason else ''}{entry.reason})"
    return [*filter(None, (why, *explanation.doubts, _logged_in_words(explanation)))]


def _logged_in_words(explanation: Explanation) -> str:
    logged = explanation.logged
    if logged is None or explanation.bypass:
        return ""
    if logged.found:
        return _("One of the counters below is the one that rejected.")
    return _(
        "None of the counters below is the one that rejected: it was another caller or path or a limit in code, or the "
        "rule has changed since. The caller's page shows the rejection."
    )


def lines_of(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of the command."""
    request = explanation.request
    named = _(", view %(view)s, route %(route)s") % {"view": request.view_name, "route": request.route}
    yield f"{request.method} {request.path}{named if request.route or request.view_name else ''}"
    yield headline_of(explanation)
    yield from (f"! {text}" for text in notes_of(explanation))
    if tier := tier_in_words(explanation.tier):
        yield _("Tier: %s") % tier
    if explanation.matched:
        yield from ("", _("These rules apply:"))
    for each in explanation.matched:
        yield f"  {each.rule.slug} ({each.rule.mode}):"
        for counter in each.counters:
            mark = f" ({_('rejected before')})" if counter.logged else ""
            yield f"    {counter.limit}{mark}: {counter_in_words(counter)}"
            yield f"      {counter.key}"
    if explanation.unmatched and not explanation.bypass:
        yield from ("", _("These do not, and why:"))
        yield from (f"  {each.rule.slug}: {each.why}" for each in explanation.unmatched)
    yield from (f"  {rule}: {_('Not in force. %s') % reason}" for rule, reason in explanation.left_out)
