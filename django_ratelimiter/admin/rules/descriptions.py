"""What a limit will do, in whole sentences: for the one who is about to save it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...engine.limits import Limit
from ...models import Rule, RuleLimit
from ...rules.formatting import duration, per, rate_in_words, units
from ..identities import label_of


def sentences(row: RuleLimit) -> str:
    """What this limit will do, for whom, and when those it refuses may come back. Empty if it cannot be enforced."""
    try:
        limit = row.to_limit()
    except (ValueError, TypeError):
        return ""
    rule = row.rule if hasattr(row, "rule") else Rule()
    if limit is None:
        return _unlimited(row)
    parts = [*_DESCRIPTIONS[limit.algorithm](limit, _who(rule, row), row)]
    if limit.soft_quota is not None:
        text = _("What is beyond %(soft)s still passes, marked and counted as beyond the soft quota.")
        parts.append(text % {"soft": units(limit.soft_quota)})
    if isinstance(rule.cost, int) and rule.cost > 1:
        parts.append(_("One request spends %(cost)s.") % {"cost": units(rule.cost)})
    if rule.charge_when == Rule.ChargeWhen.SUCCESS:
        parts.append(_("What a request spent is given back if its response is a failure."))
    if rule.charge_when == Rule.ChargeWhen.FAILURE:
        parts.append(_("What a request spent is given back unless its response is a failure."))
    if rule.count_refusals is True:
        parts.append(_("A refused request counts as well, so whoever keeps asking may wait longer."))
    parts += _counted_apart(rule)
    return " ".join(parts)


def _counted_apart(rule: Rule) -> list[str]:
    """What becomes of it where processes count by themselves."""
    interval = rule.sync_interval_ms
    if not isinstance(interval, int) or not interval:
        return []
    if interval < 0:
        return [_("Each process counts for itself, so that with four processes four times as much can pass.")]
    text = _(
        "Each process asks Redis once in %(interval)s and decides by its own count in between, so that each process "
        "beyond the first can add what it admits in twice that time."
    )
    return [text % {"interval": duration(interval * 1_000)}]


def _unlimited(row: RuleLimit) -> str:
    if row.tier:
        return _("Callers of the tier “%(tier)s” are neither limited by this rule nor counted.") % {"tier": row.tier}
    return _("Callers of every other tier are neither limited by this rule nor counted.")


def _who(rule: Rule, row: RuleLimit) -> str:
    """Who has a counter: "Each user", or "Each user, in the tier “Free”,"."""
    parts = rule.partition_by if isinstance(rule.partition_by, list) else []
    named = _(" and ").join(label_of(str(part)) for part in parts)
    if len(parts) > 1:
        who = _("Each combination of %(parts)s") % {"parts": named}
    else:
        who = _("Each %(part)s") % {"part": named} if parts else _("All callers together")
    return _("%(who)s, in the tier “%(tier)s”,") % {"who": who, "tier": row.tier} if row.tier else who


def _may_spend(limit: Limit, who: str) -> str:
    quota = ngettext("%(quota)s unit", "%(quota)s units", limit.quota) % {"quota": units(limit.quota)}
    return _("%(who)s may spend %(rate)s.") % {"who": who, "rate": rate_in_words(limit, quota)}


def _fixed_window(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    values = {"window": duration(limit.window_us), "twice": units(2 * limit.quota), "less": units(2 * limit.quota - 1)}
    if limit.calendar:
        return [_may_spend(limit, who), _begins(limit), _edge() % values]
    if limit.anchor == "first_request":
        text = _(
            "Each counter's window begins with its first request and lasts %(window)s; the end of one and the start "
            "of the next can together admit %(less)s. Who is refused may come back when the window is over."
        )
        return [_may_spend(limit, who), text % values]
    begins = _("The count begins anew with each window of %(window)s by the clock (UTC).")
    return [_may_spend(limit, who), begins % values, _edge() % values]


def _edge() -> str:
    return _(
        "The last moment of one window and the first of the next can together admit %(twice)s. "
        "Who is refused may come back when the next window begins."
    )


def _begins(limit: Limit) -> str:
    """When a calendar's count begins anew."""
    day = limit.anchor_day or 1
    texts = {
        "day": _("The count begins anew at midnight in %(zone)s."),
        "week": _("The count begins anew on Mondays at midnight in %(zone)s."),
        "month": _("The count begins anew on day %(day)s of each month, at midnight in %(zone)s."),
        "year": _("The count begins anew on the first of January at midnight in %(zone)s."),
    }
    if day > 28:
        texts["month"] = _(
            "The count begins anew on day %(day)s of each month, or the last day of a shorter one, "
            "at midnight in %(zone)s."
        )
    return texts[limit.calendar or "day"] % {"zone": limit.timezone or "UTC", "day": day}


def _sliding_window_log(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    text = _(
        "No stretch of %(window)s ever admits more: every request is remembered for so long. "
        "Who is refused may come back as soon as enough of what was spent is %(window)s old."
    )
    return [_may_spend(limit, who), text % {"window": duration(limit.window_us)}]


def _sliding_window_counter(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    text = _(
        "What was spent in the last window of the clock counts for the share of it that is less than %(window)s ago, "
        "as if it had been spent evenly. So a stretch of %(window)s can admit %(less)s at the very worst. "
        "Who is refused may come back as soon as that share leaves room."
    )
    return [_may_spend(limit, who), text % {"window": duration(limit.window_us), "less": units(2 * limit.quota - 1)}]


def _sliding_window_slots(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    slots = limit.number_of_slots
    if slots == 1:
        return _fixed_window(limit, who, row)
    text = _(
        "The window moves on in %(slots)s steps. No stretch of %(most)s ever admits more; one of %(window)s can admit "
        "%(twice)s at the very worst. Who is refused may come back when enough of the steps have been left behind."
    )
    values = {"slots": slots, "window": duration(limit.window_us), "twice": units(2 * limit.quota)}
    return [_may_spend(limit, who), text % (values | {"most": duration(limit.window_us * (slots - 1) // slots)})]


def _bucket(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    size, quota = limit.capacity, limit.quota
    values = {"size": units(size), "quota": units(quota), "window": duration(limit.window_us), "pace": _pace(limit)}
    if limit.refill == "interval":
        text = _(
            "A bucket of %(size)s starts full, and %(quota)s come back all at once with each window of %(window)s by "
            "the clock (UTC). So %(size)s can pass at once, and %(most)s around the start of a window. "
            "Who is refused may come back at the start of the first window that brings enough."
        )
        return [_may_spend(limit, who), text % (values | {"most": units(size + min(size, quota))})]
    text = _(
        "A bucket of %(size)s starts full and fills up evenly, %(pace)s. So %(size)s can pass at once, and at most "
        "%(most)s in %(window)s. Who is refused may come back as soon as there is enough again."
    )
    return [_may_spend(limit, who), text % (values | {"most": units(size + quota)})]


def _leaky_bucket(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    cost = row.rule.cost if hasattr(row, "rule") and isinstance(row.rule.cost, int) else 1
    longest = Fraction((limit.capacity - cost) * limit.window_us, limit.quota)
    if longest <= 0:
        text = _("They pass one by one, %(pace)s. None is held: who comes earlier is refused, and may come back then.")
        return [_may_spend(limit, who), text % {"pace": _pace(limit)}]
    text = _(
        "They pass at an even pace, %(pace)s: a request is held until what came before has drained, for %(longest)s "
        "at most. %(size)s have room; who comes when there is none is refused, and may come back as soon as there is."
    )
    values = {"pace": _pace(limit), "size": units(limit.capacity), "longest": duration(int(longest))}
    delay = _("A synchronous worker holds none, and refuses what would have to wait.")
    if isinstance(row.max_delay_ms, int) and row.max_delay_ms:  # SQLite may hold a text there
        delay = _("A synchronous worker sleeps meanwhile, and refuses what would have to wait longer than %(delay)s.")
    return [_may_spend(limit, who), text % values, delay % {"delay": duration(row.max_delay_ms * 1_000)}]


def _concurrency(limit: Limit, who: str, row: RuleLimit) -> list[str]:
    quota = ngettext("%(quota)s unit", "%(quota)s units", limit.quota) % {"quota": units(limit.quota)}
    text = _(
        "%(who)s may have %(quota)s in progress at the same time. A place is free again when its response has ended, "
        "or after %(window)s at the latest. Who is refused may come back as soon as one is; they are told when the "
        "oldest will be at the latest."
    )
    return [text % {"who": who, "quota": quota, "window": duration(limit.window_us)}]


def _pace(limit: Limit) -> str:
    """How fast units come back: "one per 6 seconds"."""
    time = Fraction(limit.window_us, limit.quota)
    if time.denominator == 1:
        return per(_("one"), int(time))
    return _("about one per %(seconds)s seconds") % {"seconds": number_format(f"{float(time) / 1e6:.4g}")}


_DESCRIPTIONS: Final[dict[str, Callable[[Limit, str, Any], list[str]]]] = {
    "fixed_window": _fixed_window,
    "sliding_window_log": _sliding_window_log,
    "sliding_window_counter": _sliding_window_counter,
    "sliding_window_slots": _sliding_window_slots,
    "token_bucket": _bucket,
    "gcra": _bucket,
    "leaky_bucket": _leaky_bucket,
    "concurrency": _concurrency,
}
