"""The limitations of samples for callers with a multiplier, as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.apps import apps
from django.db.models import Q
from django.utils.translation import gettext as _

from ...conf import settings
from ...models import TierAssignment
from ...usage.reports.coverage import Period
from ...usage.times import stored


def multiplier_doubts(*periods: Period) -> Iterator[str]:
    """Yield what readers must know about multipliers in these periods: at most one sentence and two queries.

    Samples contain the callers' tiers, but not their multipliers. An assignment that was changed or deleted has left an
    entry in the admin's log, which does not contain its multiplier.
    """
    if settings.TIER_RESOLVER is not None:  # then assignments are ignored
        return
    if any(_assigned(period) for period in periods):
        yield _(
            "Some callers have a multiplier. It is not recorded, so the forecast uses the limits of their tier "
            "without it."
        )
    elif _changed_since(min(period.start for period in periods)):
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
