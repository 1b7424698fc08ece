"""The self-check: the current rules replayed over a log, compared with the usage recorded for the same time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Min, Sum
from django.utils.translation import gettext as _

from ...models import UsageBucket
from ...rules.stored import storage
from .outcomes import ReplayOutcome

#: The minimum share at which log and records are considered equal.
ALIKE = 0.98


@dataclass(slots=True)
class Compared:
    """Requests of one rule and tier: matched and rejected (in shadow: would be), in the records and in the replay."""

    recorded: int = 0
    recorded_rejected: int = 0
    replayed: int = 0
    replayed_rejected: int = 0

    @property
    def share(self) -> float | None:
        """The share of recorded requests that is in the log; `None` = none are recorded."""
        return self.replayed / self.recorded if self.recorded else None


@dataclass(slots=True)
class Agreement:
    """How far a replay agrees with the records. by_rule: by rule and tier. since, until: the time compared.

    versions: number of versions of the rules in that time. why_not: why nothing can be compared, as text.
    """

    by_rule: dict[tuple[str, str], Compared] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    versions: int = 1
    why_not: str = ""

    @property
    def recorded_rules(self) -> set[str]:
        """The rules with recorded usage."""
        return {rule for (rule, _tier), each in self.by_rule.items() if each.recorded}

    @property
    def total(self) -> Compared:
        """The sum over all rules with recorded usage."""
        total, known = Compared(), self.recorded_rules
        for each in [each for (rule, _tier), each in self.by_rule.items() if rule in known]:
            total.recorded += each.recorded
            total.recorded_rejected += each.recorded_rejected
            total.replayed += each.replayed
            total.replayed_rejected += each.replayed_rejected
        return total

    def sentences(self) -> list[str]:
        """Return the result, as text."""
        if self.why_not:
            return [self.why_not]
        total, found = self.total, []
        share = total.share
        assert share is not None
        if share < ALIKE:
            found.append(_("This log holds %s of the traffic that the rules matched.") % _percent(share))
        elif share > 2 - ALIKE:
            text = _(
                "This log holds %s of the traffic that was recorded: some of it was not counted, or is here twice."
            )
            found.append(text % _percent(share))
        else:
            found.append(_("This log holds the traffic that the rules matched (%s).") % _percent(share))
        text = _("Rejected by today's rules: %(replayed)s in the replay, %(recorded)s as recorded.")
        replayed = total.replayed_rejected / total.replayed if total.replayed else 0
        numbers = {"replayed": _percent(replayed), "recorded": _percent(total.recorded_rejected / total.recorded)}
        found.append(text % numbers)
        if unknown := {rule for rule, _tier in self.by_rule} - self.recorded_rules:
            found.append(_("Nothing is recorded for these rules: %s.") % ", ".join(sorted(unknown)))
        if self.versions > 1:
            text = _(
                "The rules were changed %d times in this period, so the recorded usage is also that of other rules."
            )
            found.append(text % (self.versions - 1))
        return found


#: See `OutcomeCounts`.
Counts = Mapping[tuple[str, int, ReplayOutcome, ReplayOutcome], int]


def agreement(counts: Counts, slugs: Collection[str], first_us: int, last_us: int) -> Agreement:
    """Compare the outcomes of the current rules in this time with the recorded usage. slugs: of those replayed."""
    if not counts:
        return Agreement(why_not=_("The log contains no request that rules can apply to."))
    first, last = (datetime.fromtimestamp(us / 1_000_000, UTC) for us in (first_us, last_us))
    versions: int = storage.snapshots().filter(created_at__gt=first, created_at__lte=last).count()
    found = Agreement(versions=1 + versions)
    rows, found.since, found.until = _recorded(*(each.replace(second=0, microsecond=0) for each in (first, last)))
    for rule, tier, matched, rejected in rows:
        if rule in slugs:
            found.by_rule[rule, tier] = Compared(matched or 0, rejected or 0)
    since, until = (each.timestamp() / 3_600 for each in (found.since, found.until))
    for (_view, hour, before, _after), number in counts.items():
        if since - 1 < hour < until:
            for each in before.rules:
                compared = found.by_rule.setdefault((each.rule, each.tier), Compared())
                compared.replayed += number
                compared.replayed_rejected += number * each.rejected
    if not found.total.recorded:
        found.why_not = _(
            "No usage is recorded for the time of this log, so it is not known how much of the traffic the log "
            "contains."
        )
    return found


def _recorded(first: datetime, last: datetime) -> tuple[Any, datetime, datetime]:
    """Return the recorded usage by rule and tier, and its time range: minutes if they are kept, else hours.

    first, last: the minutes of the first and the last request.
    """
    hour, end = first.replace(minute=0), last.replace(minute=0) + timedelta(hours=1)
    minutes = UsageBucket.objects.filter(granularity="minute", start__gte=first, start__lte=last)
    hours = UsageBucket.objects.filter(granularity="hour", start__gte=hour, start__lte=last)
    oldest_minute, oldest_hour = (rows.aggregate(first=Min("start"))["first"] for rows in (minutes, hours))
    has_minutes = oldest_minute and (oldest_hour is None or oldest_minute - oldest_hour < timedelta(hours=1))
    rows = minutes if has_minutes else hours
    sums = rows.order_by().values_list("rule_slug", "tier_slug")
    sums = sums.annotate(
        matched=Sum(F("allowed") + F("rejected") + F("shadow_rejected")),
        rejections=Sum(F("rejected") + F("shadow_rejected")),
    )
    return (sums, first, last + timedelta(minutes=1)) if has_minutes else (sums, hour, end)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"
