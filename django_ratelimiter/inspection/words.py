"""An explanation as text, for pages and the command line."""

from __future__ import annotations

from typing import Any, Final

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..rules.formatting import moment_in_words, until_in_words
from ..rules.records import Facts, RuleRecord
from .explanation import ClientResponse, CounterState, Explanation, Reason, RuleExplanation, TierExplanation
from .logline import LoggedRefusal

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
    "undecided": gettext_lazy("The view that gateways ask does not decide this request: servers read it differently."),
}

DOORS: Final[dict[str, Any]] = {
    "middleware": gettext_lazy("the middleware, before the view"),
    "throttle": gettext_lazy("the view's throttle, after authentication"),
    "scope": gettext_lazy("the view, by scope"),
    "rate": gettext_lazy("the view, by a rate in its code"),
    "gateway": gettext_lazy("the view that gateways ask"),
}


def door_in_words(name: str) -> str:
    """Return the call of the limiter that decides a rule."""
    return str(DOORS[name])


def bypass_in_words(explanation: Explanation) -> str:
    """Return why no rule is tested, and which access entry decides; "" if rules are tested."""
    text = str(BYPASSES[explanation.bypass]) if explanation.bypass else ""
    entry = explanation.access
    if entry is None:
        return text
    return f"{text} ({entry.kind} {entry.value}{': ' if entry.reason else ''}{entry.reason})"


def is_among(explanation: Explanation, logged: LoggedRefusal) -> bool:
    """Return whether a counter of the explanation is the one that rejected the logged request."""
    return any(
        logged.is_of(each.rule.slug, counter.digest) for each in explanation.applying for counter in each.counters
    )


def logged_in_words(explanation: Explanation, logged: LoggedRefusal | None) -> str:
    """Return whether the counter of a logged rejection is shown; "" if there is no logged rejection."""
    if logged is None:
        return ""
    if is_among(explanation, logged):
        return _("One of the counters below is the one in the log.")
    return _("None of the counters below is the one in the log: it was another caller, or another rule.")


def reason_in_words(each: RuleExplanation, explanation: Explanation) -> str:
    """Return why a rule does not apply: the first condition that does not match."""
    rule, facts = each.rule, explanation.facts
    if each.reason in BYPASSES:
        return str(BYPASSES[each.reason])
    if lacking := explanation.lacks(each):
        return _("It would count by %(names)s, which is not known here.") % {"names": ", ".join(lacking)}
    return str(_CONDITIONS[each.reason](each, rule, facts, explanation.tier))


def _off(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    return _("It is switched off.")


def _method(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    return _("Method: it is for %(wanted)s, and this is %(given)s.") % {
        "wanted": ", ".join(sorted(rule.methods)),
        "given": facts.method,
    }


def _path(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    texts = {
        "exact": _("Path: it is for %(wanted)s, and this is %(given)s."),
        "prefix": _("Path: it is for paths that start with %(wanted)s, and this is %(given)s."),
        "route": _("Route: it is for %(wanted)s, and this is %(route)s."),
    }
    values = {"wanted": rule.path, "given": facts.path, "route": facts.route or _("no route")}
    return texts[rule.path_kind] % values


def _view(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    if not facts.view_name:
        return _("View: it is for %(wanted)s, and no view answers this path.") % {"wanted": rule.view_name}
    values = {"wanted": rule.view_name, "given": facts.view_name}
    return _("View: it is for %(wanted)s, and this is %(given)s.") % values


def _scope(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    if facts.scope:
        return _("Scope: it is for %(wanted)s, but the code asks for %(given)s.") % {
            "wanted": rule.scope,
            "given": facts.scope,
        }
    return _("Scope: it is for %(wanted)s, which nothing here asks for.") % {"wanted": rule.scope}


def _authentication(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    return _("It is decided after the view has authenticated the request, but the request is rejected before that.")


def _tier(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    if not tier.kind:  # not known, or hidden from this reader
        return _("It has no limits for this caller.")
    if tier.slug in rule.limits:
        return _("The tier %(tier)s is unlimited here.") % {"tier": tier.name}
    if None in rule.limits:
        return _("In this rule, a tier without its own limits is unlimited.")
    if tier.slug:
        return _("It has no limits for the tier %(tier)s, and none for every other tier.") % {"tier": tier.name}
    return _("It has no limits for callers without a tier.")


def _missing(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    values = {"names": ", ".join(each.missing)}
    return _("It counts by %(names)s, which this request lacks. Such requests skip the rule.") % values


def _unreached(each: RuleExplanation, rule: RuleRecord, facts: Facts, tier: TierExplanation) -> str:
    if not rule.scope:
        return _("It counts by a field of the body, and the request is rejected before the body is read.")
    return _("The view would ask for its scope, but the request is rejected before that.")


_CONDITIONS: Final[dict[Reason, Any]] = {
    "off": _off,
    "method": _method,
    "path": _path,
    "view": _view,
    "scope": _scope,
    "authentication": _authentication,
    "tier": _tier,
    "missing": _missing,
    "rejected earlier": _unreached,
}


def rows_in_words(each: RuleExplanation, tier: TierExplanation) -> str:
    """Return which limits of a rule apply, and why."""
    if each.rows:
        text = _("the limits of the tier %(tier)s") % {"tier": tier.name}
    else:
        text = _("the limits of every other tier") if each.rule.depends_on_tier else _("the limits of every tier")
    if tier.multiplier != 1:
        multiplier = number_format(tier.multiplier.normalize())
        text = _("%(rows)s, times %(multiplier)s") % {"rows": text, "multiplier": multiplier}
    return text


def tier_in_words(tier: TierExplanation) -> str:
    """Return the caller's tier and why; "" if none is needed."""
    if tier.kind == "assignment":
        whom = {"user": _("user"), "group": _("group"), "api_key_hash": _("API key"), "partition": _("partition")}
        text = _("%(tier)s, assigned to the %(kind)s %(whom)s") % {
            "tier": tier.name,
            "kind": whom.get(tier.subject, ""),
            "whom": tier.whom,
        }
        if tier.multiplier != 1:
            text = _("%(text)s, limits times %(multiplier)s") % {
                "text": text,
                "multiplier": number_format(tier.multiplier.normalize()),
            }
        return (
            _("%(text)s, until %(end)s") % {"text": text, "end": moment_in_words(tier.ends_at)}
            if tier.ends_at
            else text
        )
    texts = {
        "default": _("%(tier)s, the default: nothing is assigned to this caller"),
        "resolver": _("%(tier)s, by RATELIMITER['TIER_RESOLVER']"),
        "none": _("none: nothing is assigned to this caller, and no tier is the default"),
        "unchecked": _("none: the credentials of this request have not been checked yet"),
    }
    return texts.get(tier.kind, "") % {"tier": tier.name}


def counter_in_words(counter: CounterState, mode: str = "enforce") -> str:
    """Return the state of a counter of a rule in this mode."""
    if counter.left is None or counter.used is None:
        return _("not known: Redis cannot be reached")
    values = {
        "used": number_format(counter.used),
        "quota": number_format(counter.quota),
        "left": number_format(counter.left),
    }
    words = [_("%(used)s of %(quota)s used, %(left)s left") % values]
    if counter.never:
        words.append(_("a request like this one is never allowed"))
    elif counter.blocked_until:
        text = _("blocked until %(time)s") if mode == "enforce" else _("would be blocked until %(time)s")
        words.append(text % {"time": until_in_words(counter.blocked_until)})
    if counter.reset_at:
        words.append(_("full again at %(time)s") % {"time": until_in_words(counter.reset_at)})
    return "; ".join(words)


def headline_of(explanation: Explanation) -> str:
    """Return what the caller would get, in one line; two results if it depends on how the user is logged in.

    It never says "allowed" if a rule cannot be decided here.
    """
    answer = answer_in_words(explanation.response)
    if explanation.response.allowed and (undecided := explanation.undecided):
        values = {
            "names": ", ".join(dict.fromkeys(name for each in undecided for name in explanation.lacks(each))),
            "rules": ", ".join(each.rule.slug for each in undecided),
        }
        text = _("Not known without %(names)s, which these rules count by: %(rules)s. The others allow this request.")
        return text % values
    if explanation.with_token is None:
        return answer
    text = _("If a session logs the user in: %(answer)s With a token that the view checks itself: %(other)s")
    return text % {"answer": answer, "other": answer_in_words(explanation.with_token)}


def answer_in_words(response: ClientResponse) -> str:
    """Return the response to a request, in one line."""
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
    if each.rule.mode != "shadow" or not each.applies:
        return ""
    return _("Enforced, it would reject this request.") if each.rejects else _("Enforced, it would allow this request.")


def doubts_of(explanation: Explanation) -> list[str]:
    """Return what cannot be known here."""
    found = []
    if "access entries" in explanation.hidden:
        found.append(_("You may not view access entries: this answer is as if there were none."))
    if explanation.problem:
        found.append(_("Redis cannot be reached now, so the rules' failure policies decide: %s") % explanation.problem)
    if explanation.unknown:
        text = _("Not known here, so treated as missing: %(names)s. Enter the values, or the body that contains them.")
        found.append(text % {"names": ", ".join(explanation.unknown)})
    if explanation.unchecked:
        found.append(
            _(
                "The credentials in the field Authorization are not checked here: this answer is for a caller "
                "who is not logged in. Enter the user to see the answer for that user."
            )
        )
    if explanation.with_token is not None:
        found.append(
            _(
                "The middleware cannot check a token: it decides the rules that need no user as for an anonymous "
                "caller. The answer below is for a session. Add the field Authorization to see the answer for a "
                "token."
            )
        )
    if explanation.unexplained:
        text = _("These also limit the view, with their own code, and are not explained here: %s.")
        found.append(text % ", ".join(explanation.unexplained))
    if explanation.response.error:
        text = _("The view's code raises %s. How your project responds to it is not known here.")
        found.append(text % explanation.response.error)
    return found
