"""Recorded usage, as the collector writes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django_ratelimiter.models import UsageBucket, UsageSample
from django_ratelimiter.usage.times import stored


def record(
    start: datetime,
    counts: Mapping[str, list[int]],
    *,
    rule: str = "search",
    tier: str = "free",
    rejected: int = 0,
    shares: int = 16,
) -> None:
    """Record requests: of each sampled caller so many in each minute from `start` on.

    rejected: how many of all were rejected. shares: how many times the sampled requests were counted in all.
    """
    samples = [
        UsageSample(
            rule_slug=rule, tier_slug=tier, partition_hash=who, count=count,
            minute=stored(start + timedelta(minutes=minute)),
        )
        for who, minutes in counts.items() for minute, count in enumerate(minutes) if count
    ]  # fmt: skip
    UsageSample.objects.bulk_create(samples)
    total = shares * sum(sample.count for sample in samples)
    for granularity, at in (("minute", start), ("hour", start.replace(minute=0))):
        UsageBucket.objects.create(
            rule_slug=rule,
            tier_slug=tier,
            granularity=granularity,
            start=stored(at),
            allowed=total - rejected,
            rejected=rejected,
        )
