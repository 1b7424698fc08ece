"""Fills a database like that of a large site: 500 rules, 100,000 assignments, a million rows of usage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models import Max, Model

from django_ratelimiter.backend import get_engine
from django_ratelimiter.identity import digest
from django_ratelimiter.models import (
    AccessEntry,
    CallerUsage,
    Rule,
    RuleLimit,
    RuleSetVersion,
    Tier,
    TierAssignment,
    TopCaller,
    TopPartition,
    UsageBatch,
    UsageBucket,
    UsageSample,
)
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage
from django_ratelimiter.usage.times import Granularity, floor, now, stored

RULES: Final = 500
USERS: Final = 60_000
#: With the users, these are 100,000 assignments: API keys and addresses.
KEYS: Final = 35_000
ADDRESSES: Final = 5_000
NETWORKS: Final = 10_000
#: Stored versions, each with all rules, and entries of the admin's log.
VERSIONS: Final = 200
LOGGED: Final = 50_000
#: By granularity: the length of a bucket, and the number of buckets for each rule. About a million together.
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BUCKETS: Final = {"minute": (MINUTE, 960), "hour": (HOUR, 720), "day": (DAY, 320)}
#: Top callers of each rule in each of the last hours and days, and sampled ones in each of the last minutes.
CLIENTS, HOURS_WITH_CLIENTS, DAYS_WITH_CLIENTS, MINUTES_WITH_SAMPLES = 10, 24, 7, 30
BATCH: Final = 2_000


def fill(author: User, *, share: float = 1.0) -> None:
    """Create all rows. share: of the rules, of the people, and of the data of each rule, such as 0.1."""
    rules = max(2, round(RULES * share))
    _rules(author, rules)
    _people(share)
    _versions(author, share)
    _usage(share)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _store(model: type[Model], rows: Iterable[Any]) -> None:
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        model._default_manager.bulk_create(batch)


def _rules(author: User, count: int) -> None:
    with cache.editing(author, "Rules of a large site"):
        tiers = [
            Tier.objects.create(slug=slug, name=slug.title(), rank=rank)
            for rank, slug in enumerate(("free", "pro", "team", "enterprise"))
        ]
        Rule.objects.bulk_create(_rule(number) for number in range(1, count + 1))
        limits = (
            RuleLimit(rule=rule, tier=tier, quota=60 * 10**place, window_seconds=Decimal(60))
            for rule in Rule.objects.order_by("pk")
            for place, tier in enumerate(tiers)
        )
        _store(RuleLimit, limits)


def _rule(number: int) -> Rule:
    named = {"path_kind": "prefix", "path": f"/api/v{number % 7}/things-{number}/"}
    if number % 5 == 2:
        named = {"view_name": "hello"}  # a view of the tests' project
    return Rule(
        slug=f"rule-{number}",
        name=f"Rule {number}",
        description="What this rule is there for, in a sentence or two of somebody who wrote it.",
        mode="shadow" if number % 10 == 0 else "enforce",
        partition_by=["ip"] if number % 3 == 0 else ["user"],
        exact_usage=number == 2,
        **named,
    )


def _people(share: float) -> None:
    pro = Tier.objects.get(slug="pro")
    users, keys, addresses, networks = (round(each * share) for each in (USERS, KEYS, ADDRESSES, NETWORKS))
    _store(User, (User(username=f"user{number}", email=f"user{number}@example.com") for number in range(users)))
    User.objects.create_user("ann")  # a page of the tests needs this user
    people = User.objects.filter(username__startswith="user").order_by("pk").values_list("pk", flat=True)
    _store(TierAssignment, (TierAssignment(tier=pro, user_id=pk, reason="A plan") for pk in people.iterator()))
    hashed = (TierAssignment(tier=pro, api_key_hash=f"{number:064x}") for number in range(keys))
    _store(TierAssignment, hashed)
    _store(TierAssignment, (TierAssignment(tier=pro, partition=f"ip:{_address(n)}") for n in range(addresses)))
    _store(AccessEntry, (AccessEntry(kind="ip", value=_address(n), reason="Scraper") for n in range(networks)))


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _versions(author: User, share: float) -> None:
    """Create versions, as if rules had been edited many times; the last version contains the current rules."""
    made = storage.committed_version()
    last = RuleSetVersion.objects.get(number=made.number, epoch=made.epoch)
    snapshot = json.loads(json.dumps(last.snapshot))
    count = max(30, round(VERSIONS * share))
    RuleSetVersion.objects.filter(pk=last.pk).update(number=made.number + count)
    for number in range(count):
        snapshot["rules"][number % len(snapshot["rules"])]["limits"][0]["quota"] = number + 1
        summary = f"rule rule-{number} saved"
        about = {"author": author, "summary": summary, "snapshot": snapshot}
        RuleSetVersion.objects.create(number=made.number + number, epoch=made.epoch, **about)
    storage.state().update(number=made.number + count)
    get_engine().publish(storage.committed_version())
    kind = ContentType.objects.get_for_model(Rule)
    entries = (
        LogEntry(user=author, content_type=kind, object_id=str(number % RULES + 1), action_flag=CHANGE)
        for number in range(round(LOGGED * share))
    )
    _store(LogEntry, entries)


def _usage(share: float) -> None:
    """Create usage of the first rule, and the same for all rules: a million buckets are made in the database."""
    for granularity, (width, count) in BUCKETS.items():
        _store(UsageBucket, _buckets(Granularity(granularity), width, count))
    tops = (Granularity.HOUR, HOUR, HOURS_WITH_CLIENTS), (Granularity.DAY, DAY, DAYS_WITH_CLIENTS)
    for granularity, width, count in tops:
        _store(TopPartition, _top(TopPartition, granularity, width, count, rule_slug="rule-1"))
        _store(TopCaller, _top(TopCaller, granularity, width, count, identity="user"))
    of = {"rule_slug": "rule-2", "identity": "user", "hour": stored(floor(now(), Granularity.HOUR, UTC))}
    _store(CallerUsage, (CallerUsage(**of, value=str(n), allowed=n) for n in range(round(USERS * share))))
    minute = floor(now(), Granularity.MINUTE, UTC)
    _store(
        UsageSample,
        (
            UsageSample(rule_slug="rule-1", minute=stored(minute - ago * MINUTE), partition_hash=client, count=3)
            for ago in range(1, MINUTES_WITH_SAMPLES)
            for client in callers()[:5]
        ),
    )
    for model in (UsageBucket, TopPartition, UsageSample):
        _the_same_of_all_rules(model)
    _store(UsageBatch, (UsageBatch(batch_id=f"{number}:0") for number in range(2_000)))


def _the_same_of_all_rules(model: type[Model]) -> None:
    """Send rows of one rule to the database, which copies them for the others."""
    names = [field.name for field in model._meta.concrete_fields if field.name not in ("id", "rule_slug")]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {model._meta.db_table} (rule_slug, {', '.join(names)})"
            f" SELECT rule.slug, {', '.join(f'made.{name}' for name in names)} FROM {model._meta.db_table} made"
            f" CROSS JOIN {Rule._meta.db_table} rule WHERE made.rule_slug = 'rule-1' AND rule.slug <> 'rule-1'"
        )


def _buckets(granularity: Granularity, width: timedelta, count: int) -> Iterator[UsageBucket]:
    last = floor(now(), granularity, UTC)
    for ago in range(count):
        sums = {"allowed": 100 + ago % 91, "rejected": ago % 7}
        yield UsageBucket(
            rule_slug="rule-1", tier_slug="pro", granularity=granularity, start=stored(last - ago * width), **sums
        )


def _top(model: Any, granularity: Granularity, width: timedelta, count: int, **of: str) -> Iterator[Any]:
    last = floor(now(), granularity, UTC)
    for ago in range(count):
        for place, caller in enumerate(callers()):
            sums = {"allowed": 90 - place, "rejected": place + ago % 10}
            yield model(**of, granularity=granularity, start=stored(last - ago * width), partition=caller, **sums)


def callers() -> list[str]:
    """Return the digests of the top callers."""
    return [digest(f"user:{number}") for number in range(2, 2 + CLIENTS)]


def counts() -> dict[str, int]:
    """Return how many rows there are, by model."""
    models = (Rule, RuleLimit, TierAssignment, AccessEntry, RuleSetVersion, UsageBucket, TopPartition, UsageSample)
    return {str(model._meta.verbose_name_plural): model._default_manager.count() for model in models}


def latest_user() -> int:
    """Return the primary key of a user who is assigned to a tier."""
    return int(TierAssignment.objects.aggregate(pk=Max("user"))["pk"])
