"""The limitations of a forecast from samples, as text, and how it compares with counted usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from django.apps import apps
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...conf import settings
from ...engine.limits import Limit
from ...models import TierAssignment
from ...rules.formatting import units
from ...usage.reports.coverage import Period
from ...usage.times import Granularity, now, stored
from .cells import MICROSECONDS, MINUTE_SECONDS, cells_of
from .forecast import Forecast

#: A sample that represents less than this share of the recorded requests is called incomplete.
COMPLETE_ENOUGH: Final = 0.8

#: Fewer sampled callers than this are called few.
FEW: Final = 300

#: The fields that determine which requests a rule matched, and what distinguished callers.
_RECORDED_BY: Final = ("methods", "path", "path_kind", "view_name", "scope", "partition_by", "missing_partition")


def doubts(forecast: Forecast) -> list[str]:
    """Return what readers must know about this forecast, in sentences. At most three queries."""
    return [*_of_rules(forecast), *_of_data(forecast)]


def is_of_others(forecast: Forecast) -> bool:
    """Return whether the new rule matches other requests, or distinguishes callers otherwise, than the sampled rule."""
    before, after = forecast.before, forecast.after
    return before is not None and any(getattr(before, name) != getattr(after, name) for name in _RECORDED_BY)


def is_partial(forecast: Forecast) -> bool:
    """Return whether the samples do not show all that the new rule would reject."""
    complete, after = forecast.completeness, forecast.after
    return (
        is_of_others(forecast)
        or bool(forecast.unrecorded)
        or any(record.limit.holds_leases for records in after.limits.values() for record in records)
        or (complete is not None and complete < COMPLETE_ENOUGH)
    )


def _of_rules(forecast: Forecast) -> Iterator[str]:
    after = forecast.after
    if is_of_others(forecast):
        yield _(
            "You have changed what the rule applies to, or what it counts by. The saved rule took the samples: "
            "this forecast is for its requests and callers."
        )
    limits = [record.limit for records in after.limits.values() for record in records]
    if any(limit.holds_leases for limit in limits):
        yield _("Requests in progress at once are not recorded: limits of concurrency are left out.")
    if any(not limit.holds_leases and limit.window_us < MINUTE_SECONDS * MICROSECONDS for limit in limits):
        yield _(
            "Requests are recorded per minute. The number that a window under a minute rejects depends on their "
            "times within the minute: the estimate assumes an even pace, and the upper end of the range assumes "
            "that all come at once."
        )
    elif any(not limit.holds_leases and not _is_by_the_clock(limit) for limit in limits):
        yield _(
            "Requests are recorded per minute, but this window or bucket follows each request. The estimate "
            "assumes an even pace, and the range includes bursts around the ends of windows."
        )
    if after.charge_when != "any":
        yield _(
            "The outcome of requests is not recorded: the forecast charges every request, so the rule will reject "
            "fewer."
        )
    if after.count_refusals:
        yield _(
            "Rejected requests count as well: callers who keep trying are rejected more often than this forecast says."
        )


def _is_by_the_clock(limit: Limit) -> bool:
    """Return whether its windows are the cells themselves, so that the result is certain."""
    found = cells_of(limit)
    return found is not None and found[1].safe == found[1].most


def _of_data(forecast: Forecast) -> Iterator[str]:
    if forecast.is_shared:
        yield _("All callers share one counter: the requests of each minute are known exactly, the callers are not.")
    elif 0 < forecast.sampled < FEW:
        text = ngettext(
            "The sample holds %(count)s caller only: the ranges are wide.",
            "The sample holds %(count)s callers only: the ranges are wide.",
            forecast.sampled,
        )
        yield text % {"count": units(forecast.sampled)}
    complete = forecast.completeness
    if forecast.sampled and complete is not None and complete < COMPLETE_ENOUGH:
        text = _(
            "The sample stands for only %(percent)s %% of the requests that were counted: others sent those that are "
            "missing. Requests are scaled up to the number that was counted; the numbers of callers may be too "
            "low."
        )
        yield text % {"percent": round(100 * complete)}
    kept = settings.RETENTION[Granularity.MINUTE]
    if kept is not None and forecast.period.start < now() - timedelta(days=kept):
        yield _("Samples are kept for %(days)s days, but the period begins earlier.") % {"days": kept}
    if forecast.unrecorded:
        text = _("Tiers that are not limited now are not counted, so nothing is known about them: %(tiers)s.")
        yield text % {"tiers": tiers_in_words(forecast.unrecorded)}
    if not forecast.is_shared:
        yield from _multiplier_doubts(forecast.period)
        has_anchors = TierAssignment.objects.exclude(anchor_day=None).exists
        if forecast.after.has_months and (settings.TIER_RESOLVER or has_anchors()):
            yield _("The months of some callers may begin on their own day. It is not recorded: the limit's is used.")


def tiers_in_words(tiers: Iterable[str]) -> str:
    """Return the slugs of tiers as a list; "" = every other one."""
    return ", ".join([tier or _("every other tier") for tier in tiers])


def _multiplier_doubts(period: Period) -> Iterator[str]:
    """Yield what readers must know about multipliers in this period: at most one sentence and two queries.

    Samples contain the callers' tiers, but not their multipliers. An assignment that was changed or deleted has left an
    entry in the admin's log, which does not contain its multiplier.
    """
    if _assigned(period):
        yield _(
            "Some callers have a multiplier. It is not recorded, so the forecast uses the limits of their tier "
            "without it."
        )
    elif _changed_since(period.start):
        yield _(
            "Tier assignments were changed or deleted since the period began. If they had a multiplier, it is "
            "not recorded, so the forecast uses the limits of the tier without it."
        )


def _assigned(period: Period) -> bool:
    """Return whether an assignment with a multiplier was active at some time of the period."""
    start, end = map(stored, period)
    begun, not_over = Q(starts_at=None) | Q(starts_at__lt=end), Q(ends_at=None) | Q(ends_at__gt=start)
    return TierAssignment.objects.filter(begun, not_over).exclude(multiplier=1).exists()


def _changed_since(start: datetime) -> bool:
    if not apps.is_installed("django.contrib.admin"):
        return False
    from django.contrib.admin.models import CHANGE, DELETION, LogEntry  # can only be imported if the admin is installed

    model = TierAssignment._meta
    found = LogEntry.objects.filter(
        content_type__app_label=model.app_label,
        content_type__model=model.model_name,
        action_flag__in=(CHANGE, DELETION),
        action_time__gte=stored(start),
    )
    return found.exists()
