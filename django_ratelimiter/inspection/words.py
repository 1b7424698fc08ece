"""What inspections say, alike on pages and in commands."""

from __future__ import annotations

from typing import Any, Final, Literal

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..models import TierAssignment
from ..rules.formatting import end_in_words, moment_in_words, units, until_in_words
from ..rules.records import Facts, Mismatch, RuleRecord
from ..usage.reports.totals import about
from .counters import CallerRejection, Counter
from .grounds import Grounds, TierExplanation

#: Why no rule is tested: the limiter is off by its setting, enforcement is stopped, the request is exempt, an access
#: entry decides, EXEMPT exempts the caller, there is no entry point, or gateways ask this view about other requests.
Bypass = Literal[Exemption, "disabled", "stopped", "allowed", "denied", "exempt caller", "no middleware", "gateway"]

#: The first condition of a rule that does not match.
Reason = Literal[Bypass, Mismatch, Uncharged, "off", "rejected earlier"]

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
    "exempt caller": gettext_lazy("RATELIMITER['EXEMPT'] lets this caller pass all rules."),
    "gateway": gettext_lazy("Gateways ask this view about other requests. Enter the path of such a request."),
}

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
    "tier": gettext_lazy("It has no limits for the tier %(tier)s."),
    "no tier": gettext_lazy("It has no limits for callers without a tier."),
    "missing": gettext_lazy("It counts by %(names)s, which this request lacks. Such requests skip the rule."),
    "lacks": gettext_lazy("It would count by %(names)s, which is not known here."),
    "rejected earlier": gettext_lazy("The view would ask for it, but the request is rejected before that."),
}


def reason_in_words(
    reason: Reason, rule: RuleRecord, facts: Facts, tier: str, missing: tuple[str, ...], lacks: tuple[str, ...]
) -> str:
    """Return the first condition that does not match.

    tier: the name of the caller's. missing: the names of values that the caller lacks. lacks: those of values that are
    not known here.
    """
    if reason in BYPASSES:
        return str(BYPASSES[reason])
    wanted = {"method": ", ".join(sorted(rule.methods)), "path": rule.path, "view": rule.view_name, "scope": rule.scope}
    given = {"method": facts.method, "path": facts.path, "view": facts.view_name, "scope": facts.scope, "tier": tier}
    name: str = rule.path_kind if reason == "path" else reason
    if reason in ("view", "scope", "tier") and not given[reason]:
        name = f"no {reason}"
    return str(_CONDITIONS["lacks" if lacks else name]) % {
        "wanted": wanted.get(reason),
        "given": given.get(reason),
        "route": facts.route or _("no route"),
        "tier": tier,
        "names": ", ".join(lacks or missing),
    }


def exempt_in_words(exempt: bool | None) -> str:
    """Return what EXEMPT says of a caller, see `Grounds`; "" = the caller is not exempt."""
    if exempt is None:
        return _("Whether this caller is exempt is not known: RATELIMITER['EXEMPT'] has failed (see the log).")
    return str(BYPASSES["exempt caller"]) if exempt else ""


def tier_in_words(tier: TierExplanation) -> str:
    """Return the caller's tier and why; "" if none is needed."""
    row, more = tier.assigned, tier.multiplied
    texts = {
        "assignment": _("%(tier)s, assigned to the %(whom)s"),
        "default": _("%(tier)s, the default, as no tier is assigned to this caller"),
        "resolver": _("%(tier)s, by RATELIMITER['TIER_RESOLVER']"),
        "failed": _("%(tier)s, the default, as RATELIMITER['TIER_RESOLVER'] has failed (see the log)"),
        "none": _("none, as no tier is assigned to this caller, and no tier is the default"),
        "unknown": _(
            "not known, as only the digest of this caller is known: another limit may apply than is shown here"
        ),
    }
    text = _until(texts.get(tier.kind, "") % {"tier": tier.name, "whom": row and _whom(row)}, row)
    if tier.multiplier != 1:
        times = {"text": text, "multiplier": number_format(tier.multiplier.normalize())}
        text = _until(_("%(text)s, limits times %(multiplier)s") % times, more)
    text_of_day = _("day %(day)s") if tier.anchored in (None, row) else _("day %(day)s, by an assignment")
    day = "" if tier.anchor_day is None else text_of_day % {"day": tier.anchor_day}
    if own := " ".join(filter(None, [day, tier.anchor_time, tier.timezone])):
        text = _("%(text)s; months begin on: %(own)s") % {"text": text, "own": own}
    return text


def _until(text: str, row: TierAssignment | None) -> str:
    if row is None or row.ends_at is None:
        return text
    return _("%(text)s, until %(end)s") % {"text": text, "end": end_in_words(row.ends_at)}


def _whom(row: TierAssignment) -> str:
    """Return the subject of an assignment: of an API key with its name, as in lists."""
    if not row.api_key_hash:
        return _("partition %s") % row.partition if row.partition else row.subject
    start = f"{row.api_key_hash[:8]}…"
    return _("API key %s") % (f"{row.reason} ({start})" if row.reason and row.ends_at is None else start)


def counter_in_words(counter: Counter) -> str:
    """Return the state of a counter."""
    if counter.is_local:
        return _("each process counts separately, so the sum is not known")
    if counter.left is None or counter.used is None:
        return _("not known: Redis cannot be reached")
    values = {"used": units(counter.used), "quota": units(counter.capacity), "left": units(counter.left)}
    if counter.is_assumed:
        return (_("%(used)s used") if counter.left else _("%(used)s or more used")) % values
    words = [_("%(used)s of %(quota)s used, %(left)s left") % values]
    if counter.never:
        words.append(_("a request like this one is never allowed"))
    elif counter.blocked_until:
        text = _("blocked until %(time)s") if counter.blocked else _("would be blocked until %(time)s")
        text = _("at its limit until %(time)s") if counter.blocked and counter.shared else text
        words.append(text % {"time": until_in_words(counter.blocked_until)})
    if counter.full_at and counter.full_at != counter.blocked_until:
        words.append(_("full again at %(time)s") % {"time": until_in_words(counter.full_at)})
    return "; ".join(words)


def rejection_in_words(rejection: CallerRejection, grounds: Grounds) -> str:
    """Return a rejection as text: rule, limit, how often, when, and what happens now."""
    text = _("Rejected by %(rule)s: %(times)s since %(since)s, last %(last)s")
    if rejection.shadow:
        text = _("Would be rejected by %(rule)s: %(times)s since %(since)s, last %(last)s")
    limit = _("limit now: %(limit)s") % {"limit": rejection.limit} if rejection.limit else ""
    added = ", ".join(filter(None, (limit, rejection.tier)))
    since, last = moment_in_words(rejection.since), end_in_words(rejection.at)
    times = about(rejection.times, is_estimate=rejection.is_estimate)
    named = f"{rejection.rule} ({added})" if added else rejection.rule
    text %= {"rule": named, "times": times, "since": since, "last": last}
    now = _("now: %(now)s") % {"now": rejected_now_in_words(rejection, grounds)}
    return f"{text}, {now} ({rejection.reference})"


def rejected_now_in_words(rejection: CallerRejection, grounds: Grounds) -> str:
    """Return what would happen now, and until when. grounds: go before the counter."""
    if grounds.access is not None:
        deny, allow = _("denied by an access entry"), _("allowed past all rules by an access entry")
        return deny if grounds.access.action == "deny" else allow
    if grounds.exempt:
        return _("exempt")
    if rejection.until and grounds.exempt is False:
        return _("rejected until %(until)s") % {"until": until_in_words(rejection.until)}
    if rejection.allowed is None or grounds.exempt is None:
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
