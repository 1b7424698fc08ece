"""The self-check: the current rules replayed over a log, compared with the usage recorded for the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import F, Max, Min, Sum
from django.utils.translation import gettext as _

from ..models import UsageBucket
from ..rules.stored import storage
from .comparison import Comparison
from .difference import HOUR_US

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


def agreement(comparison: Comparison) -> Agreement:
    """Compare the first rule set of a replay, if it is the current one, with the recorded usage."""
    found = Agreement(versions=1 + _later_versions(comparison.first_us, comparison.last_us))
    if not comparison.decided:
        found.why_not = _("The log contains no request that rules can apply to.")
        return found
    rows, found.since, found.until = _recorded(comparison)
    replayed = _replayed(comparison, found.since, found.until)
    slugs = {rule.slug for rule in comparison.before.rules} - {each.rule for each in comparison.left_out}
    for rule, tier, matched, rejected in rows:
        if rule in slugs:
            found.by_rule[rule, tier] = Compared(matched, rejected)
    for key, (matched, rejected) in replayed.items():
        one = found.by_rule.setdefault(key, Compared())
        one.replayed, one.replayed_rejected = matched, rejected
    if not found.total.recorded:
        found.why_not = _(
            "No usage is recorded for the time of this log, so it is not known how much of the traffic the log "
            "contains."
        )
    return found


def _recorded(comparison: Comparison) -> tuple[list[tuple[str, str, int, int]], datetime, datetime]:
    """Return the recorded usage by rule and tier, and its time range: minutes if they are kept, else hours."""
    first, last = (datetime.fromtimestamp(us // 60_000_000 * 60, UTC) for us in _ends(comparison))
    minutes = UsageBucket.objects.filter(granularity="minute", start__gte=first, start__lte=last)
    known = minutes.aggregate(first=Min("start"), last=Max("start"))
    hours = UsageBucket.objects.filter(
        granularity="hour", start__gte=first - timedelta(minutes=first.minute), start__lte=last
    )
    oldest_hour = hours.aggregate(first=Min("start"))["first"]
    if known["first"] is not None and (oldest_hour is None or known["first"] - oldest_hour < timedelta(hours=1)):
        rows: Any = minutes
        since, until = first, last + timedelta(minutes=1)
    else:
        rows = hours
        since = first - timedelta(minutes=first.minute)
        until = last - timedelta(minutes=last.minute) + timedelta(hours=1)
    sums = (
        rows.order_by()
        .values_list("rule_slug", "tier_slug")
        .annotate(
            matched=Sum(F("allowed") + F("rejected") + F("shadow_rejected")),
            rejected=Sum(F("rejected") + F("shadow_rejected")),
        )
    )
    return [(rule, tier, matched or 0, rejected or 0) for rule, tier, matched, rejected in sums], since, until


def _ends(comparison: Comparison) -> tuple[int, int]:
    return comparison.first_us, comparison.last_us


def _replayed(comparison: Comparison, since: datetime, until: datetime) -> dict[tuple[str, str], tuple[int, int]]:
    """Return requests matched and rejected by rule and tier."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for (_view, hour, before, _after), number in comparison.tally.counts.items():
        if hour * HOUR_US // 1_000_000 + 3_600 <= since.timestamp() or hour * 3_600 >= until.timestamp():
            continue
        for each in before.rules:
            matched, rejected = found.get((each.rule, each.tier), (0, 0))
            found[each.rule, each.tier] = matched + number, rejected + number * each.rejected
    return found


def _later_versions(first_us: int, last_us: int) -> int:
    """Return the number of versions in this time."""
    first, last = (datetime.fromtimestamp(us / 1_000_000, UTC) for us in (first_us, last_us))
    found: int = storage.snapshots().filter(created_at__gt=first, created_at__lte=last).count()
    return found


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or not share else f"{100 * share:.2g} %"
