"""Gives minutes that were collected before there were hours and days their part in these."""

from datetime import datetime, timedelta, tzinfo
from typing import Any

from django.db import migrations
from django.db.models import Max, Min
from django.utils import timezone

from ..usage.times import Step, aware, buckets, floor, stored

FIELDS = ("allowed", "denied", "shadow_denied", "soft_exceeded", "degraded")


def fill(apps: Any, schema_editor: Any) -> None:
    """Raise each hour to the sum of its minutes that are left, and each day to that of its hours; one day at a time.

    What is there already may be more, where minutes were deleted, and stays.
    """
    rows = apps.get_model("django_ratelimiter", "UsageBucket").objects.using(schema_editor.connection.alias)
    _keep_others_out(schema_editor, rows)
    span = rows.filter(granularity="minute").aggregate(first=Min("start"), last=Max("start"))
    if span["first"] is None:
        return
    zone = timezone.get_default_timezone()
    end = aware(span["last"]) + timedelta(minutes=1)
    for start in buckets(aware(span["first"]), end, Step.DAY, zone):
        following = floor(start + timedelta(hours=36), Step.DAY, zone)
        of_day = rows.filter(start__gte=stored(start), start__lt=stored(following))
        if not all(_fits(of_day, *step, zone) for step in (("hour", Step.HOUR), ("day", Step.DAY))):
            continue  # collected by the hours and days of another zone, which hold all there was
        _raise(of_day, "hour", _sums(of_day.filter(granularity="minute"), Step.HOUR, zone))
        _raise(of_day, "day", _sums(of_day.filter(granularity="hour"), Step.DAY, zone))


def _keep_others_out(schema_editor: Any, rows: Any) -> None:
    """What a collector adds meanwhile would be overwritten; it waits."""
    if schema_editor.connection.vendor == "postgresql":
        table = schema_editor.quote_name(rows.model._meta.db_table)
        schema_editor.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    else:
        rows.filter(granularity="none").update(allowed=0)  # SQLite has one writer at a time: us


def _fits(rows: Any, granularity: str, step: Step, zone: tzinfo) -> bool:
    starts = rows.filter(granularity=granularity).order_by().values_list("start", flat=True).distinct()
    return all(floor(aware(start), step, zone) == aware(start) for start in starts)


def _sums(rows: Any, step: Step, zone: tzinfo) -> dict[tuple[str, str, datetime], list[int]]:
    """What each rule and tier has in each step: {(rule, tier, start): amounts}."""
    sums: dict[tuple[str, str, datetime], list[int]] = {}
    for rule, tier, start, *amounts in rows.values_list("rule_slug", "tier_slug", "start", *FIELDS).iterator():
        key = rule, tier, stored(floor(aware(start), step, zone))
        sums[key] = [sum(pair) for pair in zip(sums.get(key, [0] * len(FIELDS)), amounts, strict=True)]
    return sums


def _raise(rows: Any, granularity: str, sums: dict[tuple[str, str, datetime], list[int]]) -> None:
    """Let no row of this granularity have less than this."""
    there = {(row.rule_slug, row.tier_slug, row.start): row for row in rows.filter(granularity=granularity)}
    new, changed = [], []
    for key, amounts in sums.items():
        if row := there.get(key):
            before = [getattr(row, field) for field in FIELDS]
            amounts = [max(pair) for pair in zip(before, amounts, strict=True)]
            if amounts != before:
                changed.append(row)
        else:
            rule, tier, start = key
            row = rows.model(rule_slug=rule, tier_slug=tier, start=start, granularity=granularity)
            new.append(row)
        for field, amount in zip(FIELDS, amounts, strict=True):
            setattr(row, field, amount)
    rows.bulk_create(new, batch_size=500)
    rows.bulk_update(changed, FIELDS, batch_size=100)


class Migration(migrations.Migration):
    dependencies = [
        ("django_ratelimiter", "0011_sample_by_partition"),
    ]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop, hints={"model_name": "usagebucket"}, elidable=True),
    ]
