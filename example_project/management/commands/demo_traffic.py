"""`manage.py demo_traffic`: stores a week of invented traffic, to have data for forecasts."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from django_ratelimiter.engine import Charge, MemoryEngine
from django_ratelimiter.engine.partition_stats import merge_top
from django_ratelimiter.identity import digest
from django_ratelimiter.models import TopCaller, TopPartition, UsageBucket, UsageSample, UsageTotal
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.records import RuleRecord
from django_ratelimiter.usage.collector.partitions import MAX_PARTITIONS
from django_ratelimiter.usage.reports.totals import by_start
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
        TopPartition.objects.filter(rule_slug__in=slugs, start__lt=stored(today)).delete()
        TopCaller.objects.filter(start__lt=stored(today)).delete()
        samples = [sample for rule in catalogue.RULES if rule.partition_by for sample in _samples(rule, first, today)]
        UsageSample.objects.bulk_create(samples, batch_size=500)
        rejected = _rejected(samples)
        shadow = {rule.slug for rule in cache.current_rules().rules if rule.mode == "shadow"}
        UsageBucket.objects.bulk_create(_buckets(samples, rejected, shadow), batch_size=500)
        UsageTotal.objects.filter(start__lt=stored(today)).delete()
        for each in Granularity:  # no request matches two rules
            of_rules = by_start(Q(granularity=each, start__lt=stored(today)))
            totals = [
                UsageTotal(granularity=each, start=start, **{name: getattr(sums, name) for name in UsageTotal.COUNTS})
                for start, sums in of_rules.items()
            ]
            UsageTotal.objects.bulk_create(totals, batch_size=500)
        for model, rows in _top(samples, rejected, shadow).items():
            model.objects.bulk_create(rows, batch_size=500)
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


def _buckets(samples: list[UsageSample], rejected: list[int], shadow: set[str]) -> Iterator[UsageBucket]:
    """Yield the counts of minutes, hours and days that the samples represent."""
    counts: defaultdict[tuple[str, str, str, datetime], Counter[str]] = defaultdict(Counter)
    zone, costs = timezone.get_default_timezone(), {rule.slug: rule.cost for rule in catalogue.RULES}
    for each, count in zip(samples, rejected, strict=True):
        outcome = "shadow_rejected" if each.rule_slug in shadow else "rejected"
        for granularity in Granularity:
            when = each.rule_slug, each.tier_slug, granularity, stored(floor(each.minute, granularity, zone))
            counts[when] += Counter({"allowed": SAMPLED_ONE_IN * (each.count - count), outcome: SAMPLED_ONE_IN * count})
    for when, figures in counts.items():
        names = dict(zip(("rule_slug", "tier_slug", "granularity", "start"), when, strict=True))
        yield UsageBucket(**names, **figures, units=figures["allowed"] * costs[names["rule_slug"]])


def _top(samples: list[UsageSample], rejected: list[int], shadow: set[str]) -> dict[Any, list[Any]]:
    """Return the rows of the top callers whom the samples represent, by model: of each rule, and over all rules.

    All of sixteen have sent what the sampled one has, so that the callers of an hour add up to its counts.
    """
    weights: defaultdict[tuple[Any, str, str, datetime], dict[str, tuple[int, int]]] = defaultdict(dict)
    rules = {rule.slug: rule for rule in catalogue.RULES}
    zone = timezone.get_default_timezone()
    for each, count in zip(samples, rejected, strict=True):
        rule = rules[each.rule_slug]
        is_address = rule.missing == "ip" and each.tier_slug == "anonymous"
        identity = "ip" if is_address else "|".join(rule.partition_by)
        for granularity in (Granularity.HOUR, Granularity.DAY):
            start = stored(floor(each.minute, granularity, zone))
            for number in range(SAMPLED_ONE_IN):
                whom = digest(f"{identity}:{each.partition_hash}-{number}")
                for model, of, rejections in (
                    (TopPartition, each.rule_slug, count),
                    (TopCaller, identity, 0 if each.rule_slug in shadow else count),
                ):
                    met = weights[model, of, granularity, start]
                    allowed, denied = met.get(whom, (0, 0))
                    met[whom] = allowed + each.count - rejections, denied + rejections
    rows: defaultdict[Any, list[Any]] = defaultdict(list)
    for (model, of, granularity, start), met in weights.items():
        key = {"rule_slug" if model is TopPartition else "identity": of, "granularity": granularity, "start": start}
        rows[model] += [
            model(**key, partition=whom, allowed=allowed, rejected=denied)
            for whom, (allowed, denied) in merge_top(met, MAX_PARTITIONS).items()
        ]
    return rows
