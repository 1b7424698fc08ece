"""The documentation's pictures of reports and forecasts: what `python -m tests.screenshots --docs` adds.

Reports need months of usage, which replace what the other pictures show.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import pi, sin
from pathlib import Path
from typing import Final

from django.contrib.auth.models import User
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.engine.base import Alias
from django_ratelimiter.identity import digest
from django_ratelimiter.models import Rule, TopCaller, TopPartition, UsageBucket
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from .browser import Browser

#: Requests of a busy hour by rule and tier, and how many of a hundred are too many.
BUSY: Final = {
    ("search", "free"): (4_200, 10),
    ("search", "pro"): (2_700, 4),
    ("export", "free"): (640, 32),
    ("export", "pro"): (410, 11),
    ("login", "free"): (1_500, 7),
    ("uploads", "free"): (3_100, 6),
}
DAYS: Final = 62

#: The admin's own list of apps takes the room of what is to be seen.
HIDE_NAVIGATION: Final = """
for (const each of document.querySelectorAll('#nav-sidebar, #toggle-nav-sidebar')) each.remove();
"""

#: From where to where a picture reaches: the top of the first element that is named, and the bottom of the second.
REACH: Final = """
const [first, last] = [...arguments].slice(0, 2).map(each => document.querySelector(each).getBoundingClientRect());
const margin = arguments[2];
return [Math.max(0, Math.floor(first.top + scrollY - margin)), Math.ceil(last.bottom + scrollY + margin)];
"""


def take(window: Browser, address: str, folder: Path) -> None:
    """Take them all."""
    _forecast(window, address, folder)
    _fill()
    usage = reverse("admin:django_ratelimiter_usagebucket_changelist")
    rule = reverse("admin:django_ratelimiter_usage_rule")
    for name, url, first, last in (
        ("reports-all", f"{usage}?period=7d", "body", "tfoot"),
        ("reports-rule", f"{rule}?period=30d&rule=search", "body", "#ratelimiter-top-callers"),
        ("reports-callers", f"{rule}?period=30d&rule=search&by=rejected", "#ratelimiter-top-callers", "#content-main"),
        ("reports-top-callers", reverse("admin:django_ratelimiter_usage_top_callers"), "body", "table"),
    ):
        window.resize(1000, 900)
        window.open(f"{address}{url}")
        _picture(window, folder / f"{name}.png", first, last)


def _forecast(window: Browser, address: str, folder: Path) -> None:
    """Ask what a lower quota would do."""
    rule = Rule.objects.get(slug="search")
    window.resize(1000, 900)
    window.open(f"{address}{reverse('admin:django_ratelimiter_rule_change', args=[rule.pk])}?_forecast=1")
    window.script("document.getElementById('id_limits-0-quota').value = '40'")
    window.click(".ratelimiter-forecast-choices [value='1']")
    window.wait_for("[name=limits-0-quota][value='40']")
    _picture(window, folder / "change-a-limit.png", "#ratelimiter-forecast", ".ratelimiter-quotas", margin=6)


def _picture(window: Browser, file: Path, first: str, last: str, margin: int = 20) -> None:
    window.script(HIDE_NAVIGATION)
    top, bottom = window.script(REACH, first, last, margin)
    file.write_bytes(window.pictured(bottom - top, top))


def _caller(place: int) -> Alias:
    return digest(f"user:{place + 4}")  # after those of the staff


def _fill() -> None:
    """Two months of usage, with nights, weekends, and a morning on which somebody was rejected often."""
    with transaction.atomic():
        UsageBucket.objects.all().delete()
        for model in (TopPartition, TopCaller):
            model.objects.all().delete()
        UsageBucket.objects.bulk_create(_buckets(), batch_size=1_000)
        for place in range(12):
            User.objects.get_or_create(pk=place + 4, defaults={"username": f"shop-{place}"})
        rows = list(_callers())
        TopPartition.objects.bulk_create(rows, batch_size=1_000)
        TopCaller.objects.bulk_create(map(_over_all_rules, rows), batch_size=1_000)


def _buckets() -> Iterator[UsageBucket]:
    zone = timezone.get_default_timezone()
    days: dict[tuple[str, str, str], list[int]] = {}
    last = floor(now(), Granularity.HOUR, zone)
    for ago in range(24 * DAYS, 0, -1):
        start = last - timedelta(hours=ago)
        local = start.astimezone(zone)
        wave = 0.2 + max(0.0, sin((local.hour - 6) / 14 * pi)) * (0.4 if local.weekday() > 4 else 0.8)
        for (slug, tier), (busy, of_hundred) in BUSY.items():
            requests = round(busy * wave * (1 + 0.06 * sin(ago * 7 + busy)))
            share = of_hundred * (5 if ago in (31, 32) and slug == "search" else wave) / 100
            rejected = min(round(requests * share), requests)
            kind = "shadow_rejected" if slug == "uploads" else "rejected"
            figures = {"allowed": requests - rejected, kind: rejected}
            yield UsageBucket(rule_slug=slug, tier_slug=tier, granularity="hour", start=stored(start), **figures)
            day = floor(start, Granularity.DAY, zone).isoformat()
            sums = days.setdefault((slug, tier, day), [0, 0])
            for place, figure in enumerate((requests - rejected, rejected)):
                sums[place] += figure
    for (slug, tier, day), (allowed, rejected) in days.items():
        start = floor(datetime.fromisoformat(day), Granularity.DAY, zone)
        kind = "shadow_rejected" if slug == "uploads" else "rejected"
        figures = {"allowed": allowed, kind: rejected}
        yield UsageBucket(rule_slug=slug, tier_slug=tier, granularity="day", start=stored(start), **figures)


def _over_all_rules(row: TopPartition) -> TopCaller:
    given = {"allowed": 2 * row.allowed, "rejected": row.rejected, "tail": row.tail}
    return TopCaller(identity="user", granularity=row.granularity, start=row.start, partition=row.partition, **given)


def _callers() -> Iterator[TopPartition]:
    zone = timezone.get_default_timezone()
    for granularity, width in (("hour", timedelta(hours=1)), ("day", timedelta(days=1))):
        last = floor(now(), Granularity(granularity), zone)
        for ago in range(1, 24 * 8 if granularity == "hour" else DAYS):
            start = floor(last - ago * width, Granularity(granularity), zone)
            for place in range(12):
                yield TopPartition(
                    rule_slug="search",
                    granularity=granularity,
                    start=stored(start),
                    partition=_caller(place),
                    tail=_caller(place).tail,
                    allowed=round(width.total_seconds() / 60 * 9 / (place + 2)),
                    rejected=round(width.total_seconds() / 75 / (place + 1) ** 2),
                )
