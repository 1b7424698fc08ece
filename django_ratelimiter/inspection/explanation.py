"""An explanation: what each rule decides for a request, and the answer; as data, and as text for pages and commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final, Literal

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..rules.formatting import end_in_words, moment_in_words, units, until_in_words
from ..rules.inline import PREFIX
from ..rules.records import Facts, Mismatch, RejectedRule, RuleRecord
from ..usage.reports.totals import about
from ..values.references import Reference
from .counters import CallerRejection, Counter
from .grounds import AccessExplanation, TierExplanation, tier_in_words

#: Why no rule is tested: the limiter is off by its setting, enforcement is stopped, the request is exempt, an access
#: entry decides, there is no entry point, or gateways ask this view about other requests.
Bypass = Literal[Exemption, "disabled", "stopped", "allowed", "denied", "no middleware", "gateway"]

#: The first condition that does not match; "" = the rule applies.
Reason = Literal[Bypass, Mismatch, Uncharged, "off", "rejected earlier"]


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """What a rule decides for the request."""

    MEMBERS = ("rule", "mode", "applies", "reason", "why", "missing", "lacks", "rows", "rejects", "counters")

    rule: RuleRecord
    reason: Reason  # a code for the first condition that does not match; empty = it applies
    why: str  # the same in words
    missing: tuple[str, ...]  # the names of values that the caller lacks
    lacks: tuple[str, ...]  # the names of values that are not known here, and that matter
    rows: str  # the tier whose limits apply; empty = those of every other tier
    counters: tuple[Counter, ...]

    @property
    def mode(self) -> str:
        return self.rule.mode

    @property
    def applies(self) -> bool:
        """True if it is tested for this request."""
        return not self.reason

    @property
    def rejects(self) -> bool:
        """True if it would reject the request, also in shadow."""
        return any(each.allowed is False for each in self.counters)


@dataclass(frozen=True, slots=True)
class CallerResponse:
    """What the caller would get now, as far as rules and access entries decide."""

    allowed: bool
    status: int | None  # of a rejection, unless your own RESPONSE has another; `None` = the view's own
    binding: str  # the rule that rejects
    delay: float  # seconds before the response
    degraded: bool


@dataclass(frozen=True, slots=True)
class LoggedRejection:
    """The rejection that a question's reference names."""

    reference: Reference
    found: bool  # one of the counters is the one that rejected
    #: What is known about it, for a day; empty = nothing more, or `doubts` say that it cannot be read now.
    rejections: tuple[CallerRejection, ...] = ()
    #: The question is about the caller who was rejected.
    same_caller: bool = False
    #: Why Redis could not be asked about it or its caller; "" = it was asked.
    problem: str = ""

    MEMBERS = ("reference", "found", "rejections")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the limiter allows or rejects a request."""

    request: Facts
    version: int
    bypass: Bypass  # why no rule is tested; empty = rules are
    access: AccessExplanation | None  # the access entry that decides
    tier: TierExplanation
    identities: Mapping[str, str | None]  # the caller's values, if rules need them; … = a credential, not shown
    unknown: tuple[str, ...]  # the names of values that matter and are not known
    doubts: tuple[str, ...]  # what cannot be known here, in words
    rules: tuple[RuleExplanation, ...]
    left_out: tuple[RejectedRule, ...]  # rules that are not in force at all
    in_code: tuple[str, ...]  # the view's own limits, which are not decided here
    response: CallerResponse
    logged: LoggedRejection | None  # the rejection that the reference names

    @property
    def access_of_logged(self) -> AccessExplanation | None:
        """The access entry that decides, if the caller is the one of the logged rejection."""
        return self.access if self.logged and self.logged.same_caller else None

    @property
    def is_degraded(self) -> bool:
        """True if Redis did not answer."""
        return self.response.degraded or bool(self.logged and self.logged.problem)

    @property
    def undecided(self) -> tuple[RuleExplanation, ...]:
        """The enforced rules that count by a value that is not known here: they may reject the request after all."""
        return tuple(each for each in self.rules if each.mode == "enforce" and each.lacks)

    @property
    def applying(self) -> tuple[RuleExplanation, ...]:
        """The rules that apply."""
        return tuple(each for each in self.rules if each.applies)

    @property
    def others(self) -> tuple[RuleExplanation, ...]:
        """The rules that do not apply."""
        return tuple(each for each in self.rules if not each.applies)


#: Why no rule is tested.
BYPASSES: Final[dict[str, Any]] = {
    "disabled": gettext_lazy("RATELIMITER['ENABLED'] is False: no rule is looked at."),
    "stopped": gettext_lazy("All enforcement is stopped: no rule is looked at."),
    "preflight": gettext_lazy("This is a CORS preflight, which no rule applies to."),
    "health": gettext_lazy("This path is a health probe, which no rule applies to."),
    "redirect": gettext_lazy("Django redirects this path to another spelling of it. That costs nothing."),
    "exempt": gettext_lazy(
        "No rule applies to this path: it is exempt, by RATELIMITER['EXEMPT_PATHS'] or its default."
    ),
    "no middleware": gettext_lazy(
        "The middleware of the limiter is not in MIDDLEWARE, and the view asks for no rules."
    ),
    "allowed": gettext_lazy("An access entry allows this caller: no rule applies."),
    "denied": gettext_lazy("An access entry denies this caller: every request is rejected."),
    "gateway": gettext_lazy("Gateways ask this view about other requests. Enter the path of such a request."),
}


def bypass_in_words(explanation: Explanation) -> str:
    """Return why no rule is tested, and which access entry decides; "" if rules are tested."""
    text = str(BYPASSES[explanation.bypass]) if explanation.bypass else ""
    entry = explanation.access
    if entry is None:
        return text
    return f"{text} ({entry.subject}{': ' if entry.reason else ''}{entry.reason})"


def logged_in_words(explanation: Explanation) -> str:
    """Return whether the counter of a logged rejection is shown; "" if there is none."""
    logged = explanation.logged
    if logged is None:
        return ""
    if logged.found:
        return _("One of the counters below is the one that rejected.")
    if explanation.bypass:
        return _("This is the caller who was rejected.") if logged.same_caller else ""
    slug = logged.reference.rule
    if slug.startswith(PREFIX):
        return _("A limit in code rejected, which is not decided here: %s. The caller's page shows its counter.") % slug
    meant = [each for each in explanation.rules if each.rule.slug == slug]
    if wanted := [name for each in meant for name in (*each.lacks, *each.missing)]:
        text = _("Enter the caller's values to see the counter that rejected. Not known here: %s.")
        return text % ", ".join(dict.fromkeys(wanted))
    if not any(each.applies for each in meant):
        return _("The rule that rejected does not apply to this request now: %s.") % slug
    if logged.same_caller:
        return _("This is the caller who was rejected, but none of the counters below is the one that rejected.")
    return _(
        "None of the counters below is the one that rejected: it was another caller, or the rule has changed since."
    )


#: The conditions that do not match, in words.
_CONDITIONS: Final[dict[str, Any]] = {
    "off": gettext_lazy("It is switched off."),
    "method": gettext_lazy("Method: it is for %(wanted)s, and this is %(given)s."),
    "exact": gettext_lazy("Path: it is for %(wanted)s, and this is %(given)s."),
    "prefix": gettext_lazy("Path: it is for paths that start with %(wanted)s, and this is %(given)s."),
    "route": gettext_lazy("Route: it is for %(wanted)s, and this is %(route)s."),
    "view": gettext_lazy("View: it is for %(wanted)s, and this is %(given)s."),
    "no view": gettext_lazy("View: it is for %(wanted)s, and no view answers this path."),
    "scope": gettext_lazy("Scope: it is for %(wanted)s, but the code asks for %(given)s."),
    "no scope": gettext_lazy("Scope: it is for %(wanted)s, which nothing here asks for."),
    "authentication": gettext_lazy(
        "It is decided after the view has authenticated the request, but the request is rejected before that."
    ),
    "hidden tier": gettext_lazy("It has no limits for this caller."),  # or not known
    "unlimited tier": gettext_lazy("The tier %(tier)s is unlimited here."),
    "other tier": gettext_lazy("In this rule, a tier without its own limits is unlimited."),
    "tier": gettext_lazy("It has no limits for the tier %(tier)s, and none for every other tier."),
    "no tier": gettext_lazy("It has no limits for callers without a tier."),
    "missing": gettext_lazy("It counts by %(names)s, which this request lacks. Such requests skip the rule."),
    "rejected earlier": gettext_lazy("The view would ask for it, but the request is rejected before that."),
}


def reason_in_words(
    reason: Reason,
    rule: RuleRecord,
    facts: Facts,
    tier: TierExplanation,
    missing: tuple[str, ...],
    lacks: tuple[str, ...],
) -> str:
    """Return the first condition that does not match.

    missing: the names of values that the caller lacks. lacks: those of values that are not known here.
    """
    if reason in BYPASSES:
        return str(BYPASSES[reason])
    if lacks:
        return _("It would count by %(names)s, which is not known here.") % {"names": ", ".join(lacks)}
    wanted = {"method": ", ".join(sorted(rule.methods)), "path": rule.path, "view": rule.view_name, "scope": rule.scope}
    given = {"method": facts.method, "path": facts.path, "view": facts.view_name, "scope": facts.scope}
    return str(_CONDITIONS[_condition(reason, rule, given.get(reason), tier)]) % {
        "wanted": wanted.get(reason),
        "given": given.get(reason),
        "route": facts.route or _("no route"),
        "tier": tier.name,
        "names": ", ".join(missing),
    }


def _condition(reason: Reason, rule: RuleRecord, given: str | None, tier: TierExplanation) -> str:
    """Return the name of the text in `_CONDITIONS`."""
    if reason in ("view", "scope"):
        return reason if given else f"no {reason}"
    if reason != "tier":
        return rule.path_kind if reason == "path" else reason
    if not tier.kind:
        return "hidden tier"
    if tier.slug in rule.limits:
        return "unlimited tier"
    return "other tier" if None in rule.limits else "tier" if tier.slug else "no tier"


def rows_in_words(each: RuleExplanation, tier: TierExplanation) -> str:
    """Return which limits of a rule apply, and why."""
    if each.rows:
        text = _("the limits of the tier %(tier)s") % {"tier": tier.name}
    else:
        text = _("the limits of every other tier") if each.rule.depends_on_tier else _("the limits for everyone")
    if tier.multiplier != 1 and not each.rule.is_shared:
        multiplier = number_format(tier.multiplier.normalize())
        text = _("%(rows)s, times %(multiplier)s") % {"rows": text, "multiplier": multiplier}
    return text


def counter_in_words(counter: Counter) -> str:
    """Return the state of a counter."""
    if counter.left is None or counter.used is None:
        return _("not known: Redis cannot be reached")
    values = {"used": units(counter.used), "quota": units(counter.capacity), "left": units(counter.left)}
    words = [_("%(used)s of %(quota)s used, %(left)s left") % values]
    if counter.never:
        words.append(_("a request like this one is never allowed"))
    elif counter.blocked_until:
        text = _("blocked until %(time)s") if counter.mode == "enforce" else _("would be blocked until %(time)s")
        words.append(text % {"time": until_in_words(counter.blocked_until)})
    if counter.full_at:
        words.append(_("full again at %(time)s") % {"time": until_in_words(counter.full_at)})
    return "; ".join(words)


def rejection_in_words(rejection: CallerRejection, access: AccessExplanation | None = None) -> str:
    """Return a rejection as text: rule, limit, how often, when, and what happens now. access: decides now."""
    text = _("Rejected by %(rule)s: %(times)s since %(since)s, last %(last)s")
    if rejection.shadow:
        text = _("Would be rejected by %(rule)s: %(times)s since %(since)s, last %(last)s")
    limit = _("limit now: %(limit)s") % {"limit": rejection.limit} if rejection.limit else ""
    added = ", ".join(filter(None, (limit, rejection.tier)))
    since, last = moment_in_words(rejection.since), end_in_words(rejection.at)
    times = about(rejection.times, is_estimate=rejection.is_estimate)
    named = f"{rejection.rule} ({added})" if added else rejection.rule
    text %= {"rule": named, "times": times, "since": since, "last": last}
    now = _("now: %(now)s") % {"now": rejected_now_in_words(rejection, access)}
    return f"{text}, {now} ({rejection.reference})"


def rejected_now_in_words(rejection: CallerRejection, access: AccessExplanation | None = None) -> str:
    """Return what would happen now, and until when. access: the caller's entry, which goes before the counter."""
    if access is not None:
        deny, allow = _("denied by an access entry"), _("allowed past all rules by an access entry")
        return deny if access.action == "deny" else allow
    if rejection.until:
        return _("rejected until %(until)s") % {"until": until_in_words(rejection.until)}
    if rejection.allowed is None:
        return _("not known")
    return _("allowed again") if rejection.allowed else _("never allowed")


def reach_in_words(rule: RuleRecord) -> str:
    """Return what a rule applies to, as a short text; "" = all requests."""
    is_whole = rule.path == "/" and rule.path_kind == "prefix"
    parts = [*sorted(rule.methods), rule.view_name, "" if is_whole else rule.path, rule.scope]
    return " ".join(filter(None, parts))


def at_limit_in_words(rule: RuleRecord) -> str:
    """Return what is at its limit if the counter of this rule, which all callers share, is used up."""
    reach = reach_in_words(rule)
    return _("%(reach)s is at its limit") % {"reach": reach} if reach else _("The whole site is at its limit")


def headline_of(explanation: Explanation) -> str:
    """Return what the caller would get, in one line. It never says "allowed" if a limit cannot be decided here."""
    if explanation.response.allowed and explanation.response.degraded:
        text = _("Not known, as Redis cannot be reached. By the rules' failure policies: %s")
        return text % _answer_in_words(explanation.response)
    if explanation.response.allowed and (undecided := explanation.undecided):
        values = {
            "names": ", ".join(dict.fromkeys(name for each in undecided for name in each.lacks)),
            "rules": ", ".join(each.rule.slug for each in undecided),
        }
        text = _("Not known without %(names)s, which these rules count by: %(rules)s. The others allow this request.")
        return text % values
    if explanation.response.allowed and explanation.in_code:
        text = _("The rules allow this request. These limits in the view's code are not decided here: %s.")
        return text % ", ".join(explanation.in_code)
    return _answer_in_words(explanation.response)


def _answer_in_words(response: CallerResponse) -> str:
    if not response.allowed:
        by = (
            _("Rejected with status %(status)s by %(rule)s.")
            if response.binding
            else _("Rejected with status %(status)s.")
        )
        return by % {"status": response.status, "rule": response.binding}
    if response.delay:
        return _("Allowed after a delay of %(seconds)s seconds.") % {"seconds": number_format(round(response.delay, 3))}
    return _("Allowed.")


def shadow_in_words(each: RuleExplanation) -> str:
    """Return what a rule in shadow would do if it were enforced; "" for others."""
    if each.mode != "shadow" or not each.applies:
        return ""
    return _("Enforced, it would reject this request.") if each.rejects else _("Enforced, it would allow this request.")


def doubts_in_words(
    *,
    problem: str,
    unknown: Sequence[str],
    is_unchecked: bool,
    has_view: bool,
) -> Iterator[str]:
    """Yield what cannot be known here.

    problem: why Redis did not answer. is_unchecked: the request has credentials, and the question names no user.
    """
    if problem:
        yield _("Redis cannot be reached now, so the rules' failure policies decide: %s") % problem
    if unknown:
        yield _("Not known here, so treated as missing: %(names)s. Enter the values.") % {"names": ", ".join(unknown)}
    if is_unchecked:
        yield _(
            "Session cookies and the field Authorization are not checked here: this answer is for a caller "
            "who is not logged in. Enter the user to see the answer for that user."
        )
    if not has_view:
        yield _("No view answers this path. Rules count such requests, too.")


def unread_in_words(logged: LoggedRejection | None) -> str:
    """Return what cannot be known of a logged rejection, because Redis did not answer; "" if it did."""
    text = _("Redis cannot be reached now, so what is known of the rejection and its caller cannot be read: %s")
    return text % logged.problem if logged and logged.problem else ""


def lines_of(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of the command."""
    request = explanation.request
    named = _(", view %(view)s, route %(route)s") % {"view": request.view_name, "route": request.route}
    yield f"{request.method} {request.path}{named if request.route or request.view_name else ''}"
    rejections = explanation.logged.rejections if explanation.logged else ()
    yield from (rejection_in_words(each, explanation.access_of_logged) for each in rejections)
    yield _("Now: %s") % headline_of(explanation) if rejections else headline_of(explanation)
    for text in (bypass_in_words(explanation), *explanation.doubts, logged_in_words(explanation)):
        if text:
            yield f"! {text}"
    if tier := tier_in_words(explanation.tier):
        yield _("Tier: %s") % tier
    if explanation.applying:
        yield ""
        yield _("These rules apply:")
        for each in explanation.applying:
            yield from _lines_of_rule(each, explanation.tier)
    if explanation.others and not explanation.bypass:
        yield ""
        yield _("These do not, and why:")
        yield from (f"  {each.rule.slug}: {each.why}" for each in explanation.others)
    yield from (f"  {rule}: {_('Not in force. %s') % reason}" for rule, reason in explanation.left_out)


def _lines_of_rule(each: RuleExplanation, tier: TierExplanation) -> Iterator[str]:
    yield f"  {each.rule.slug} ({each.mode}): {rows_in_words(each, tier)}"
    for counter in each.counters:
        mark = f" ({_('rejected before')})" if counter.logged else ""
        yield f"    {counter.limit}{mark}: {counter_in_words(counter)}"
        yield f"      {counter.key}"
    if shadow := shadow_in_words(each):
        yield f"    {shadow}"


def encoded(value: Any) -> Any:
    """Return a report, or a part of one, as plain data: a rule by its slug, a time in ISO 8601."""
    if isinstance(value, RuleRecord | Reference):
        return str(value)
    if is_dataclass(value) or hasattr(value, "_fields"):
        return {name: encoded(getattr(value, name)) for name in _names(value)}
    if isinstance(value, Mapping):
        return {name: encoded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return value.isoformat() if isinstance(value, date) else value


def _names(report: Any) -> tuple[str, ...]:
    """Return the names of the members: those in MEMBERS, which may be properties, or all fields."""
    named: tuple[str, ...] | None = getattr(report, "MEMBERS", None) or getattr(report, "_fields", None)
    return named or tuple(each.name for each in fields(report))
