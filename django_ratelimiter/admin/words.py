"""Rules in plain words, for lists."""

from __future__ import annotations

from typing import Any, Final

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from ..engine.limits import Limit
from ..models import Rule
from ..rules.ruleset import RuleRecord

#: Seconds, and how a quota per so many of them reads; the longest that measures a window wholly is taken.
PERIODS: Final[tuple[tuple[int, Any], ...]] = (
    (604_800, ngettext_lazy("%(quota)s per week", "%(quota)s per %(count)s weeks", "count")),
    (86_400, ngettext_lazy("%(quota)s per day", "%(quota)s per %(count)s days", "count")),
    (3_600, ngettext_lazy("%(quota)s per hour", "%(quota)s per %(count)s hours", "count")),
    (60, ngettext_lazy("%(quota)s per minute", "%(quota)s per %(count)s minutes", "count")),
    (1, ngettext_lazy("%(quota)s per second", "%(quota)s per %(count)s seconds", "count")),
)


def limits_in_words(rule: RuleRecord) -> str:
    """Each tier's limits: "free: 100 per minute, sliding window; pro: unlimited"."""
    if not rule.limits:
        return _("no limits: it applies to nobody")
    others = _("every other tier") if len(rule.limits) > 1 else _("every tier")
    return "; ".join(
        f"{others if tier is None else tier}: "
        f"{_(' and ').join(limit_in_words(record.limit) for record in records) or _('unlimited')}"
        for tier, records in rule.limits.items()
    )


def limit_in_words(limit: Limit) -> str:
    """One limit: "100 per minute, token bucket, burst 20"."""
    words = [_rate(limit), limit.algorithm.replace("_", " ").removesuffix(" counter")]
    if limit.burst is not None:
        words.append(_("burst %(units)s") % {"units": _units(limit.burst)})
    if limit.soft_quota is not None:
        words.append(_("soft quota %(units)s") % {"units": _units(limit.soft_quota)})
    return ", ".join(words)


def place_in_words(rule: Rule) -> str:
    """Which requests meet a rule: "GET, POST · /api/…". Takes a row that cannot be enforced, too."""
    kinds = {
        "exact": "%(path)s",
        "prefix": "%(path)s…",
        "route": _("route %(path)s"),
    }
    words = [", ".join(map(str, rule.methods)) if isinstance(rule.methods, list) else ""]
    words.append(kinds.get(rule.path_kind, "") % {"path": rule.path})
    words.append(_("view %(name)s") % {"name": rule.view_name} if rule.view_name else "")
    words.append(_("scope %(name)s") % {"name": rule.scope} if rule.scope else "")
    return " · ".join(filter(None, words)) or _("every request")


def _rate(limit: Limit) -> str:
    quota = _units(limit.quota)
    for seconds, text in PERIODS:
        count, rest = divmod(limit.window_us, seconds * 1_000_000)
        if not rest:
            return str(text % {"quota": quota, "count": count})
    return _("%(quota)s per %(seconds)s seconds") % {
        "quota": quota,
        "seconds": f"{limit.window_us / 1e6:f}".rstrip("0"),
    }


def _units(number: int) -> str:
    return number_format(number, force_grouping=True)
