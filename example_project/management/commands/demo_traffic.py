"""`manage.py demo_traffic`: stores a week of invented traffic, to have data for forecasts."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone

from django_ratelimiter.engine import Charge, MemoryEngine
from django_ratelimiter.models import UsageBucket, UsageSample
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.records import RuleRecord
from django_ratelimiter.usage.times import Granularity, floor, now, stored

from ... import catalogue

DAYS: Final = 7
#: Sampled callers of each rule and tier; each represents sixteen.
CALLERS: Final = 12
SAMPLED_ONE_IN: Final = 16
#: Requests per minute of the busiest caller of a tier.
BUSIEST: Final = 24
TIERS: Final = ("anonymous", "free", "pro", "enterprise")


class Command(BaseCommand):
    """Invents the seven days before today. Earlier invented data is replaced; today does not change."""

    help = "Records a week of invented traffic for each of the example's rules."

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        today = floor(now(), Granularity.DAY, timezone.get_default_timezone())
        first = today - timedelta(days=DAYS)
        slugs = [rule.slug for rule in catalogue.RULES if rule.partition_by]
        UsageSample.objects.filter(rule_slug__in=slugs, minute__lt=stored(today)).delete()
        UsageBucket.objects.filter(rule_slug__in=slugs, start__lt=stored(today)).delete()
        samples = [sample for rule in catalogue.RULES if rule.partition_by for sample in _samples(rule, first, today)]
        UsageSample.objects.bulk_create(samples, batch_size=500)
        UsageBucket.objects.bulk_create(_buckets(samples, _rejected(samples)), batch_size=500)
        self.stdout.write(f"Recorded {len(samples):,} invented samples of {len(slugs)} rules, over {DAYS} days.")


def _samples(rule: catalogue.Rule, first: datetime, today: datetime) -> Iterator[UsageSample]:
    """Yield a rule's samples: each caller comes by day, some minutes in a row, and few of them come often."""
    chance = random.Random(rule.slug)
    for tier in (each for each in TIERS if any(limit.quota for limit in rule.limits_for(each))):
        for place in range(CALLERS):
            most = max(1, BUSIEST // (place + 1))
            minutes: set[datetime] = set()
            for day in range(DAYS):
                hour = min(23, max(0, round(chance.gauss(14, 4))))
                start = first + timedelta(days=day, hours=hour, minutes=chance.randrange(50))
                minutes |= {start + timedelta(minutes=minute) for minute in range(chance.randrange(1, 10))}
            for minute in sorted(each for each in minutes if each < today):
                yield UsageSample(
                    rule_slug=rule.slug, tier_slug=tier, partition_hash=f"invented-{tier}-{place + 1:02}",
                    minute=stored(minute), count=chance.randrange(1, most + 1),
                )  # fmt: skip


def _rejected(samples: list[UsageSample]) -> list[int]:
    """Return how many requests of each sample the current rules reject if they are evenly spread in its minute."""
    rules = {rule.slug: rule for rule in cache.current_rules().rules}
    engine, found = MemoryEngine(), [0] * len(samples)
    for place, sample in sorted(enumerate(samples), key=lambda each: each[1].minute):
        rule, start = rules.get(sample.rule_slug), int(sample.minute.timestamp()) * 1_000_000
        charges = _charges(rule, sample) if rule else []
        for number in range(sample.count):
            verdicts = engine.check(charges, now_us=start + number * 60_000_000 // sample.count)
            found[place] += not all(verdict.allowed for verdict in verdicts)
    return found


def _charges(rule: RuleRecord, sample: UsageSample) -> list[Charge]:
    limits = rule.limits.get(sample.tier_slug, rule.limits.get(None, ()))
    key = f"{rule.slug}:{sample.partition_hash}"
    return [Charge(key, limit.limit, rule.cost, max_delay=limit.max_delay) for limit in limits]


def _buckets(samples: list[UsageSample], rejected: list[int]) -> Iterator[UsageBucket]:
    """Yield the counts of minutes, hours and days that the samples represent."""
    counts: defaultdict[tuple[str, str, str, datetime], Counter[str]] = defaultdict(Counter)
    shadow = {rule.slug for rule in cache.current_rules().rules if rule.mode == "shadow"}
    zone = timezone.get_default_timezone()
    for each, count in zip(samples, rejected, strict=True):
        outcome = "shadow_rejected" if each.rule_slug in shadow else "rejected"
        for granularity in Granularity:
            start = stored(floor(each.minute, granularity, zone))
            counts[each.rule_slug, each.tier_slug, granularity, start] += Counter(
                {"allowed": SAMPLED_ONE_IN * (each.count - count), outcome: SAMPLED_ONE_IN * count}
            )
    for (rule, tier, granularity, start), figures in counts.items():
        yield UsageBucket(rule_slug=rule, tier_slug=tier, granularity=granularity, start=start, **figures)
