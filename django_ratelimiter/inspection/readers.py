"""The parts of an explanation that a reader may see: one permission each for counters, tiers and access entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from django.utils.translation import gettext as _

from .answer import explain
from .explanation import Explanation, TierExplanation
from .question import Question

SEES_COUNTERS: Final = "django_ratelimiter.view_usage_report"
SEES_TIERS: Final = "django_ratelimiter.view_tierassignment"
SEES_ACCESS: Final = "django_ratelimiter.view_accessentry"

#: The caller's values: only for readers that may see what is known about callers.
CALLER_FIELDS: Final = ("user", "api_key", "session")


class CallerHidden(Exception):
    """The question names a caller, which this reader must not do; the message names the permission."""


def may_name_callers(reader: Any) -> bool:
    """Return whether this user may ask about a certain user, API key or session."""
    return bool(reader.has_perm(SEES_COUNTERS) or reader.has_perm(SEES_TIERS))


def explain_to(reader: Any, question: Question) -> Explanation:
    """Return the explanation for this user. Raises CallerHidden, and QuestionError.

    Readers that may not view access entries get it as if there were none: each part would reveal a matching one.
    """
    named = any(getattr(question, name) or name in question.identities for name in CALLER_FIELDS)
    if named and not may_name_callers(reader):
        text = _("To use %(names)s you need the permission to view usage reports or tier assignments.")
        raise CallerHidden(text % {"names": ", ".join(CALLER_FIELDS)})
    return _as_seen_by(explain(question, heeds_access=reader.has_perm(SEES_ACCESS)), reader)


def _as_seen_by(explanation: Explanation, reader: Any) -> Explanation:
    """Return the explanation without the parts that this user may not view; `hidden` names them."""
    hidden = []
    if not reader.has_perm(SEES_COUNTERS):
        hidden.append("counters")
        rules = tuple(replace(each, counters=(), value="") for each in explanation.rules)
        response = replace(explanation.response, allowed=True, status=None, fields={}, body="", binding="", delay=0.0)
        explanation = replace(explanation, rules=rules, response=response, identities={}, with_token=None)
    if not reader.has_perm(SEES_TIERS):
        hidden.append("tiers")
        rules = tuple(replace(each, rows="") for each in explanation.rules)
        explanation = replace(explanation, rules=rules, tier=TierExplanation(""))
    if not reader.has_perm(SEES_ACCESS):
        hidden.append("access entries")
    return replace(explanation, hidden=tuple(hidden))
