"""The check that the collector runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.core import checks
from django.core.checks import CheckMessage
from django.db.models import Max, Min

from ..conf import settings
from ..models import RuleSetVersion, UsageBatch
from ..usage.times import aware, now
from .common import TAG, are_invalid, from_database, rules_in_force

#: Time without counts after which the collector is assumed not to run. A site may be idle for a night.
LONG: Final = timedelta(days=1)


def check_collecting(**_kwargs: object) -> list[CheckMessage]:
    """W013: there are rules, but no usage has been collected for a day."""
    if are_invalid("CACHE_ALIAS") or not settings.CACHE_ALIAS or not rules_in_force():
        return []
    since = from_database(_since)
    if since is None or aware(since) > now() - LONG:
        return []
    return [
        checks.Warning(
            f"No usage has been collected from Redis since {since:%Y-%m-%d %H:%M %Z}, and Redis keeps it only for "
            "8 days.",
            hint="Run `manage.py ratelimit collect` each minute, or Celery beat with the entry from the documentation. "
            "If no request has matched a rule since then, you can ignore this.",
            id=f"{TAG}.W013",
        )
    ]


def _since() -> datetime | None:
    """Return when usage was last collected; if never, when the first rules were saved; `None` if neither was."""
    collected: datetime | None = UsageBatch.objects.aggregate(at=Max("collected_at"))["at"]
    return collected or RuleSetVersion.objects.aggregate(at=Min("created_at"))["at"]
