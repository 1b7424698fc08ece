"""A caller's own limits and known usage; reading them uses no quota."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import partial
from typing import Final, NamedTuple

from django.db.models import Case, IntegerField, Sum, When
from django.http import HttpRequest
from django.utils import timezone

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE
from ..engine.base import NEVER, Verdict
from ..engine.coroutines import run_sync
from ..engine.limits import Limit
from ..exceptions import AccessDenied
from ..headers import Quota, name_of, quota_of
from ..identity import Identity, digest, identify, partition
from ..limiter.charges import access_entry_for, limit_request
from ..limiter.io import THREAD
from ..limiter.path import peek_decision
from ..models import TopPartition, UsageSample
from ..rules import cache
from ..rules.records import RuleRecord, TierRecord
from ..usage.times import Granularity, aware, buckets, floor, now, stored

DAYS: Final = 30

#: What only a request that meets the rule has.
_OF_THE_REQUEST: Final = ("path:", "field:")


class OwnLimit(NamedTuple):
    """A limit of the caller. verdict: of a request that came now; `None` = not known."""

    rule: RuleRecord
    tier: TierRecord | None
    limit: Limit
    verdict: Verdict | None

    @property
    def policy(self) -> str:
        return name_of(self.rule, self.tier, self.limit)

    @property
    def quota(self) -> Quota:
        return quota_of(self.limit)

    @property
    def remaining(self) -> int | None:
        if self.verdict is None:
            return None
        # Where the caller lacks what the rule is split by, nothing passes, whatever it costs.
        return 0 if self.verdict.charge.cost == NEVER else self.verdict.remaining

    @property
    def resets_in(self) -> float | None:
        return self.verdict.reset_after if self.verdict else None

    @property
    def resets_at(self) -> datetime | None:
        if self.verdict is None:
            return None
        return datetime.fromtimestamp(self.verdict.at_us / 1e6, UTC) + timedelta(seconds=self.verdict.reset_after)

    @property
    def retry_in(self) -> float | None:
        if self.verdict is None:
            return None
        return 0.0 if self.verdict.allowed else self.verdict.retry_after


class OwnStatus(NamedTuple):
    """A caller's tier and limits, and the digest by which each rule's counters know the caller."""

    tier: TierRecord | None
    limits: list[OwnLimit]
    digests: dict[str, str]


class Day(NamedTuple):
    """Requests of one day that met one rule. allowed, denied: `None` = not known. known_from: heaviest or sample."""

    date: date
    rule: str
    requests: int
    allowed: int | None
    denied: int | None
    known_from: str


def own_status(request: HttpRequest) -> OwnStatus:
    """Return the caller's limits under all enforced rules, wherever these apply. Uses no quota.

    Raises AccessDenied if an access entry denies the caller. A caller whom an entry allows has no limits, and nobody
    has any while enforcement is stopped.
    """
    rules, identity = cache.current_rules(), identify(request)
    granted = cache.entitlement_for(
        rules, identity.user_id, identity.api_key, partial(partition, identity), identity.resolve_tier
    )
    access = access_entry_for(cache.access_list(), identity)
    if access is not None and access.action == "deny":
        raise AccessDenied(access)
    if access is not None or not rules.enforced or not settings.ENABLED:
        return OwnStatus(granted.tier, [], {})
    decision = run_sync(peek_decision(THREAD, limit_request(request, earlier=NOTHING_TO_DECIDE, reach="all")))
    limits = [
        OwnLimit(result.rule, result.tier, result.limit, result.verdict)
        for result in decision.results
        if result.mode == "enforce" and not _depends_on_request(result.rule)
    ]
    for rule in rules.rules:
        if rule.mode == "enforce" and _depends_on_request(rule):
            limits += [OwnLimit(rule, granted.tier, record.limit, None) for record in rule.limits_for(*granted)]
    digests = {own.rule.slug: _digest(own.rule, identity) for own in limits}
    return OwnStatus(granted.tier, limits, {slug: found for slug, found in digests.items() if found})


def days(digests: Mapping[str, str]) -> tuple[date, date, list[Day]]:
    """Return the first and the last of the last 30 days, and the known usage. digests: of the caller, by rule.

    Two queries. Neither the heaviest partitions, which are those of some hours of a day, nor samples know all: where
    both know of a day, those who know of more requests are believed.
    """
    zone = timezone.get_default_timezone()
    today = now().astimezone(zone).date()
    first = today - timedelta(days=DAYS - 1)
    start = stored(floor(datetime.combine(first, time(12), zone), Granularity.DAY, zone))
    days_by_rule: dict[tuple[date, str], Day] = {}
    for day in (*_days_of_top_partitions(digests, start, zone), *_days_of_samples(digests, start, zone)):
        other = days_by_rule.setdefault((day.date, day.rule), day)
        if day.requests > other.requests:
            days_by_rule[day.date, day.rule] = day
    return first, today, sorted(days_by_rule.values(), key=lambda day: (day.date, day.rule))


def _days_of_top_partitions(digests: Mapping[str, str], start: datetime, zone: tzinfo) -> Iterator[Day]:
    rows = TopPartition.objects.filter(
        granularity=TopPartition.Granularity.DAY, start__gte=start,
        rule_slug__in=list(digests), partition__in=set(digests.values()),
    )  # fmt: skip
    for row in rows.iterator():
        if digests[row.rule_slug] == row.partition:
            on = aware(row.start).astimezone(zone).date()
            yield Day(on, row.rule_slug, row.allowed + row.denied, row.allowed, row.denied, "heaviest")


def _days_of_samples(digests: Mapping[str, str], start: datetime, zone: tzinfo) -> Iterator[Day]:
    # Days are told apart by their starts: MySQL and MariaDB know no time zones unless an operator has loaded them.
    starts = list(buckets(aware(start), now(), Granularity.DAY, zone))
    latest_first = [When(minute__gte=stored(each), then=number) for number, each in reversed(list(enumerate(starts)))]
    # By an index on these two; rules are told apart here, for a database might prefer them to the index.
    rows = (
        UsageSample.objects.filter(partition_hash__in=set(digests.values()), minute__gte=start)
        .values("rule_slug", "partition_hash", day=Case(*latest_first, output_field=IntegerField()))
        .annotate(sum=Sum("count"))
        .order_by()
    )
    for row in rows.iterator():
        if digests.get(row["rule_slug"]) == row["partition_hash"]:
            on = starts[row["day"]].astimezone(zone).date()
            yield Day(on, row["rule_slug"], row["sum"], None, None, "sample")


def _depends_on_request(rule: RuleRecord) -> bool:
    return any(name.startswith(_OF_THE_REQUEST) for name in rule.partition_by)


def _digest(rule: RuleRecord, identity: Identity) -> str | None:
    """Return the digest of the caller's own counters under a rule; `None` = not known, or shared with all callers."""
    if not rule.partition_by or _depends_on_request(rule):
        return None
    value = partition(identity, rule.partition_by)
    if value is None and rule.missing_partition == "ip":
        value = partition(identity, ("ip",))
    return None if value is None else digest(value)
