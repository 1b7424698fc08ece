"""What of an explanation each reader may see: one permission each for counters, tiers and access entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from .explanation import Explanation, TierExplanation

SEES_COUNTERS: Final = "django_ratelimiter.view_usage_report"
SEES_TIERS: Final = "django_ratelimiter.view_tierassignment"
SEES_ACCESS: Final = "django_ratelimiter.view_accessentry"

#: Who asks: only for those who may see what is known of callers.
CALLER_FIELDS: Final = ("user", "api_key", "session")


def may_name_callers(reader: Any) -> bool:
    """Return whether this user may ask what a certain user, API key or session would be answered."""
    return bool(reader.has_perm(SEES_COUNTERS) or reader.has_perm(SEES_TIERS))


def as_seen_by(explanation: Explanation, reader: Any) -> Explanation:
    """Return the explanation without what this user may not view, which `hidden` names."""
    hidden = []
    if not reader.has_perm(SEES_COUNTERS):
        hidden.append("counters")
        rules = tuple(replace(each, counters=(), value="") for each in explanation.rules)
        response = replace(explanation.response, allowed=True, status=None, fields={}, body="", binding="", delay=0.0)
        explanation = replace(explanation, rules=rules, response=response, identities={})
    if not reader.has_perm(SEES_TIERS):
        hidden.append("tiers")
        rules = tuple(replace(each, rows="") for each in explanation.rules)
        explanation = replace(explanation, rules=rules, tier=TierExplanation(""))
    if not reader.has_perm(SEES_ACCESS):
        hidden.append("access entries")
        explanation = replace(explanation, access=None)
    return replace(explanation, hidden=tuple(hidden))
