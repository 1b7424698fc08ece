"""Sentences about the effect of a limit, for an operator before saving it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...engine.algorithms import STEPS, Microseconds, Units
from ...engine.limits import Limit
from ...models import Rule, RuleLimit
from ...rules.formatting import duration, per, rate_in_words, units
from ..identities import label_of


def sentences(row: RuleLimit) -> str:
    """Return the effect of this limit, for whom, and when rejected callers may retry; "" if it cannot be enforced."""
    try:
        limit = row.to_limit()
    except (ValueError, TypeError):
        return ""
    rule = row.rule if hasattr(row, "rule") else Rule()
    if limit is None:
        return _unlimited(row)
    parts = [*_of_algorithm(limit, rule, row)]
    if limit.soft_quota is not None:
        text = _("Usage beyond %(soft)s is still allowed, but marked and counted as beyond the soft quota.")
        parts.append(text % {"soft": units(limit.soft_quota)})
    if isinstance(rule.cost, int) and rule.cost > 1:
        parts.append(_("One request uses %(cost)s.") % {"cost": units(rule.cost)})
    if rule.charge_when == Rule.ChargeWhen.SUCCESS:
        parts.append(_("The charge is refunded if the response is a failure."))
    if rule.charge_when == Rule.ChargeWhen.FAILURE:
        parts.append(_("The charge is refunded unless the response is a failure."))
    if rule.count_refusals is True:
        parts.append(_("Rejected requests count too, so callers who keep trying may wait longer."))
    parts += _counted_apart(rule)
    return " ".join(parts)


def _counted_apart(rule: Rule) -> list[str]:
    """Return the effect of counting in each process."""
    interval = rule.sync_interval_ms
    if not isinstance(interval, int) or not interval:
        return []
    if interval < 0:
        return [_("Each process counts separately: with four processes, four times as much can pass.")]
    text = _(
        "Each process fetches units in advance and keeps them for %(interval)s; meanwhile another process may reject."
    )
    return [text % {"interval": duration(interval * 1_000)}]


def _unlimited(row: RuleLimit) -> str:
    if row.tier:
        return _("Callers of the tier “%(tier)s” are neither limited by this rule nor counted.") % {"tier": row.tier}
    return _("Callers of every other tier are neither limited by this rule nor counted.")


def _who(rule: Rule, row: RuleLimit) -> str:
    """Return who has a counter: "Each user", or "Each user, in the tier “Free”,"."""
    parts = rule.partition_by if isinstance(rule.partition_by, list) else []
    named = _(" and ").join(label_of(str(part)) for part in parts)
    if len(parts) > 1:
        who = _("Each combination of %(parts)s") % {"parts": named}
    else:
        who = _("Each %(part)s") % {"part": named} if parts else _("All callers together")
    return _("%(who)s, in the tier “%(tier)s”,") % {"who": who, "tier": row.tier} if row.tier else who


def _of_algorithm(limit: Limit, rule: Rule, row: RuleLimit) -> Iterator[str]:
    """Return the sentences of the algorithm itself. For leases also the maximum for a caller."""
    who, cost = _who(rule, row), rule.cost if isinstance(rule.cost, int) else 1
    quota = ngettext("%(quota)s unit", "%(quota)s units", limit.quota) % {"quota": units(limit.quota)}
    if not limit.holds_leases:
        yield _("%(who)s can use %(rate)s.") % {"who": who, "rate": rate_in_words(limit, quota)}
    common = {
        "who": who,
        "quota": quota,
        "size": units(limit.capacity),
        "window": duration(limit.window_us),
        "pace": _pace(limit),
    }
    for text, values in STEPS[limit.algorithm].describe(limit, cost):
        yield _(text) % (common | {name: _shown(value) for name, value in values.items()})
    if limit.holds and limit.capacity > cost:
        yield _delay(row.max_delay_ms)


def _shown(value: object) -> object:
    if isinstance(value, Units):
        return units(value)
    return duration(value) if isinstance(value, Microseconds) else value


def _delay(max_delay_ms: object) -> str:
    if not isinstance(max_delay_ms, int) or not max_delay_ms:  # SQLite may contain a text
        return _("Synchronous workers delay no requests: they reject those that would have to wait.")
    text = _(
        "Synchronous workers sleep during the delay, and reject requests that would have to wait longer than %(delay)s."
    )
    return text % {"delay": duration(max_delay_ms * 1_000)}


def _pace(limit: Limit) -> str:
    """Return how fast units come back: "one per 6 seconds"."""
    time = Fraction(limit.window_us, limit.quota)
    if time.denominator == 1:
        return per(_("one"), int(time))
    return _("about one per %(seconds)s seconds") % {"seconds": number_format(f"{float(time) / 1e6:.4g}")}
