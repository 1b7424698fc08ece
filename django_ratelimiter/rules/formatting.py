"""Limits, times and lists of names as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import Any, Final

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.timesince import timesince
from django.utils.translation import get_language, gettext_lazy, ngettext, ngettext_lazy
from django.utils.translation import gettext as _

from ..engine.limits import OPTIONS, Limit
from ..values.bounds import MAX_NAMES
from ..values.windows import window_in_short
from .records import LimitRecord, RuleRecord

#: Seconds, the text of a quota per that many, and their own text; the longest unit that divides a window is used.
PERIODS: Final[tuple[tuple[int, Any, Any], ...]] = (
    (
        604_800,
        ngettext_lazy("%(quota)s per week", "%(quota)s per %(count)s weeks", "count"),
        ngettext_lazy("a week", "%(count)s weeks", "count"),
    ),
    (
        86_400,
        ngettext_lazy("%(quota)s per day", "%(quota)s per %(count)s days", "count"),
        ngettext_lazy("a day", "%(count)s days", "count"),
    ),
    (
        3_600,
        ngettext_lazy("%(quota)s per hour", "%(quota)s per %(count)s hours", "count"),
        ngettext_lazy("an hour", "%(count)s hours", "count"),
    ),
    (
        60,
        ngettext_lazy("%(quota)s per minute", "%(quota)s per %(count)s minutes", "count"),
        ngettext_lazy("a minute", "%(count)s minutes", "count"),
    ),
    (
        1,
        ngettext_lazy("%(quota)s per second", "%(quota)s per %(count)s seconds", "count"),
        ngettext_lazy("a second", "%(count)s seconds", "count"),
    ),
)

#: A time nearer than this is also shown as the time left: DATETIME_FORMAT has no seconds.
NEAR: Final = timedelta(minutes=2)

CALENDAR_RATES: Final = {
    "day": gettext_lazy("%(quota)s per calendar day"),
    "week": gettext_lazy("%(quota)s per calendar week"),
    "month": gettext_lazy("%(quota)s per calendar month"),
    "year": gettext_lazy("%(quota)s per calendar year"),
}


def limits_in_words(rule: RuleRecord) -> str:
    """Return each tier's limits: "free: 100 per minute, sliding window; pro: unlimited"."""
    if not rule.limits:
        return _("no limits: it applies to nobody")
    others = _("every other tier") if len(rule.limits) > 1 else _("everyone")
    return "; ".join(
        f"{others if tier is None else tier}: {_(' and ').join(map(limit_in_words, records)) or _('unlimited')}"
        for tier, records in rule.limits.items()
    )


def limits_in_short(rule: RuleRecord, tiers: Sequence[str] = ()) -> str:
    """Return each tier's limits for a narrow column: "free 100/h, pro unlimited, others 20/min".

    tiers: slugs in the order of display; all other tiers come last.
    """
    if not rule.limits:
        return _("no limits")
    texts = {
        tier: " + ".join(limit_in_short(record.limit) for record in records) or _("unlimited")
        for tier, records in rule.limits.items()
    }
    if list(texts) == [None]:
        return texts[None]
    rest = [tier for tier in texts if tier is not None and tier not in tiers]
    named = [f"{tier} {texts[tier]}" for tier in (*tiers, *rest) if tier in texts]
    return ", ".join([*named, f"{_('others')} {texts[None]}"] if None in texts else named)


def limit_in_short(limit: Limit) -> str:
    """Return a limit without its algorithm: "100/h", "10/15 min", "5 at once", "100 per calendar month"."""
    if limit.holds_leases:
        return _("%(quota)s at once") % {"quota": units(limit.quota)}
    if limit.calendar:
        return rate_in_words(limit, units(limit.quota))
    return f"{units(limit.quota)}/{window_in_short(limit.window)}"


def limit_in_words(record: LimitRecord) -> str:
    """Return one limit: "100 per minute, token bucket, burst 20"."""
    limit = record.limit
    if limit.holds_leases:
        rate = _("%(quota)s at once, each for %(window)s at most")
        words = [rate % {"quota": units(limit.quota), "window": duration(limit.window_us)}]
    elif limit.calendar:
        rate = _("%(rate)s in %(zone)s")
        words = [rate % {"rate": rate_in_words(limit, units(limit.quota)), "zone": limit.timezone or "UTC"}]
    else:
        algorithm = _(limit.traits.short) if limit.traits.short else limit.algorithm.replace("_", " ")
        words = [rate_in_words(limit, units(limit.quota)), algorithm]
    return ", ".join([*words, *_options(record)])


def _options(record: LimitRecord) -> list[str]:
    """Return the options that differ from their defaults; those without words of their own by their names."""
    limit, words = record.limit, []
    given = {name: getattr(limit, name) for name, default in OPTIONS.items() if getattr(limit, name) != default}
    for told in ("calendar", "timezone", "slots"):
        given.pop(told, None)
    if (first := given.pop("anchor_day", None)) is not None or limit.anchor_time is not None:
        start = str(limit.anchor_time or "").removesuffix(":00")
        words.append(_("from day %(day)s") % {"day": ", ".join(filter(None, [str(first or 1), start]))})
    if given.pop("anchor", "") == "first_request":
        words.append(_("from the first request"))
    if "slots" in limit.traits.options:
        words.append(_("%(count)s slots") % {"count": limit.number_of_slots})
    if given.pop("refill", "") == "interval":
        words.append(_("refilled all at once"))
    if burst := given.pop("burst", None):
        words.append(_("burst %(units)s") % {"units": units(burst)})
    if record.max_delay:
        words.append(_("held for %(delay)s at most") % {"delay": duration(round(record.max_delay * 1_000_000))})
    if soft := given.pop("soft_quota", None):
        words.append(_("soft quota %(units)s") % {"units": units(soft)})
    return words + [f"{name} {value}" for name, value in given.items()]


def rate_in_words(limit: Limit, quota: str) -> str:
    """Return a quota per window: "100 per minute", or "100 units per calendar month"; `quota` is its beginning."""
    if limit.calendar:
        return str(CALENDAR_RATES[limit.calendar] % {"quota": quota})
    return per(quota, limit.window_us)


def per(quota: str, microseconds: int) -> str:
    """Return a quota per duration: "one per 6 seconds"."""
    for seconds, text, _length in PERIODS:
        count, rest = divmod(microseconds, seconds * 1_000_000)
        if count and not rest:
            return str(text % {"quota": quota, "count": count})
    return _("%(quota)s per %(seconds)s seconds") % {"quota": quota, "seconds": _decimal(microseconds)}


def duration(microseconds: int) -> str:
    """Return a duration: "a minute", "90 seconds", "0.25 seconds"."""
    for seconds, _rate, text in PERIODS:
        count, rest = divmod(microseconds, seconds * 1_000_000)
        if count and not rest:
            return str(text % {"count": count})
    return _("%(seconds)s seconds") % {"seconds": _decimal(microseconds)}


def units(number: int) -> str:
    """Return a number with the thousands separators of the reader's language."""
    return _grouped(number, get_language())


@lru_cache(maxsize=4096)  # a report on many rules has thousands of numbers, many of them equal
def _grouped(number: int, language: str | None) -> str:
    return number_format(number, use_l10n=True, force_grouping=True)


def moment_in_words(moment: datetime) -> str:
    """Return a date and time, as "Nov. 22, 2026, 4:30 p.m."."""
    return str(date_format(timezone.localtime(moment) if timezone.is_aware(moment) else moment, "DATETIME_FORMAT"))


def end_in_words(moment: datetime) -> str:
    """Return a date and time with its time zone, for operators: "Nov. 22, 2026, 4:30 p.m. CET"."""
    if not timezone.is_aware(moment):
        return moment_in_words(moment)
    return f"{moment_in_words(moment)} {date_format(timezone.localtime(moment), 'T')}"


def until_in_words(moment: datetime, now: datetime | None = None) -> str:
    """Return when something ends: "Nov. 22, 2026, 4:30 p.m. CET (in 47 seconds)", rounded up to the minute."""
    rest = moment - (now or (datetime.now(UTC) if timezone.is_aware(moment) else timezone.now()))
    whole = moment.replace(second=0, microsecond=0)
    text = end_in_words(whole if whole == moment else whole + timedelta(minutes=1))
    if not timedelta(0) < rest < NEAR:
        return text
    return _("%(moment)s (in %(time)s)") % {"moment": text, "time": duration(ceil(rest.total_seconds()) * 1_000_000)}


def _decimal(microseconds: int) -> str:
    return number_format(f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}".rstrip("0").rstrip("."))


def listed(found: Iterable[object]) -> str:
    """Return "a, b, c": at most MAX_NAMES names; the others are counted."""
    names = [*map(str, found)]
    text, more = ", ".join(names[:MAX_NAMES]), len(names) - MAX_NAMES
    if more <= 0:
        return text
    return f"{text} {ngettext('and %(count)d more', 'and %(count)d more', more) % {'count': more}}"


def ago(moment: datetime) -> str:
    """Return how long ago a time is, as text."""
    if (datetime.now(UTC) - moment).total_seconds() < 60:
        return _("less than a minute ago")
    return _("%s ago") % timesince(moment, depth=1)
