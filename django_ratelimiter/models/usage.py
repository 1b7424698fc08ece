"""Usage, collected from the engine, and lasting conditions, for each of which one alert is sent."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import F, Field, Index
from django.utils.translation import gettext_lazy as _

from .validation import LazyText

#: Maximum characters of a tail: those of `values.digests.MAX_READABLE` bytes, and a mark.
MAX_TAIL = 201


class UsageCounts(models.Model):
    """Requests in one minute, hour or day.

    granularity: the same requests are counted in a minute, an hour and a day, so add up buckets of one only.
    start: hours and days begin in the project's time zone. allowed: they went through; soft_exceeded is a part of them.
    shadow_rejected: would have been rejected if a rule in shadow were enforced.
    degraded: a part of all, decided by a process without Redis.
    """

    #: The columns that are added up.
    COUNTS: ClassVar[tuple[str, ...]] = ("allowed", "rejected", "shadow_rejected", "soft_exceeded", "degraded")

    class Granularity(models.TextChoices):
        MINUTE = "minute", _("minute")
        HOUR = "hour", _("hour")
        DAY = "day", _("day")

    granularity: Field[str, str] = models.CharField(
        _("granularity"), max_length=8, choices=Granularity.choices, default=Granularity.MINUTE
    )
    start: Field[datetime, datetime] = models.DateTimeField(_("start"))
    allowed: Field[int, int] = models.BigIntegerField(_("allowed"), default=0)
    rejected: Field[int, int] = models.BigIntegerField(_("rejected"), default=0)
    shadow_rejected: Field[int, int] = models.BigIntegerField(_("rejected in shadow"), default=0)
    soft_exceeded: Field[int, int] = models.BigIntegerField(_("soft quota exceeded"), default=0)
    degraded: Field[int, int] = models.BigIntegerField(
        _("decided without Redis"),
        default=0,
        db_default=0,  # rows written by SQL may omit it
    )

    class Meta:
        abstract = True


class UsageTotal(UsageCounts):
    """Requests that at least one rule matched, each once: rejected if one rejects it. exempt: a part of allowed."""

    COUNTS = (*UsageCounts.COUNTS, "exempt")

    exempt: Field[int, int] = models.BigIntegerField(_("exempt"), default=0, db_default=0)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("total of requests")
        verbose_name_plural: ClassVar[LazyText] = _("totals of requests")
        ordering: ClassVar[tuple[str, ...]] = ("-start",)
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["granularity", "start"], name="ratelimiter_usage_total"),
        ]

    def __str__(self) -> str:
        return f"{self.granularity} {self.start:%Y-%m-%d %H:%M}"


class UsageBucket(UsageCounts):
    """Requests that one rule decided for one tier.

    rule_slug, tier_slug: texts instead of foreign keys, so that reports outlive rules; tier_slug "" = no tier.
    rejected: by this rule. rejected_by_other: this rule allows them, but another one rejected them. units: what the
    allowed ones cost. Refunds and costs that were known later count in their own minute, so units may be below 0.
    """

    COUNTS = (*UsageCounts.COUNTS, "rejected_by_other", "units")

    #: All requests of a bucket, for queries.
    REQUESTS: ClassVar = F("allowed") + F("rejected") + F("rejected_by_other") + F("shadow_rejected")

    rule_slug: Field[str, str] = models.CharField(_("rule"), max_length=50)
    tier_slug: Field[str, str] = models.CharField(_("tier"), max_length=50, blank=True, default="")
    rejected_by_other: Field[int, int] = models.BigIntegerField(_("rejected by another rule"), default=0, db_default=0)
    units: Field[int, int] = models.BigIntegerField(_("units"), default=0, db_default=0)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("usage bucket")
        verbose_name_plural: ClassVar[LazyText] = _("usage reports")
        permissions: ClassVar[list[tuple[str, str | LazyText]]] = [("view_usage_report", _("Can view usage reports"))]
        ordering: ClassVar[tuple[str, ...]] = ("-start", "rule_slug", "tier_slug")
        indexes: ClassVar[list[Index]] = [Index(fields=["granularity", "start"], name="ratelimiter_usage_start")]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["rule_slug", "tier_slug", "granularity", "start"], name="ratelimiter_usage_bucket"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rule_slug}|{self.tier_slug} {self.start:%Y-%m-%d %H:%M}"


class UsageBatch(models.Model):
    """A batch of counts that was added to the buckets. Its name prevents adding it twice."""

    batch_id: Field[str, str] = models.CharField(_("batch"), max_length=200, unique=True)
    collected_at: Field[datetime, datetime] = models.DateTimeField(_("collected at"), auto_now_add=True)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("usage batch")
        verbose_name_plural: ClassVar[LazyText] = _("usage batches")
        ordering: ClassVar[tuple[str, ...]] = ("-collected_at", "-pk")

    def __str__(self) -> str:
        return self.batch_id


class _Top(models.Model):
    """One of the top partitions of an hour or a day: at most 100.

    partition: its digest, as in the names of keys. tail: see `values.digests`. allowed, rejected: requests.
    estimated: from a sample, because a process had many calls in the hour; else they are exact.
    """

    class Granularity(models.TextChoices):
        HOUR = "hour", _("hour")
        DAY = "day", _("day")

    granularity: Field[str, str] = models.CharField(_("granularity"), max_length=8, choices=Granularity.choices)
    start: Field[datetime, datetime] = models.DateTimeField(_("start"))
    partition: Field[str, str] = models.CharField(_("partition"), max_length=200)
    tail: Field[str, str] = models.CharField(_("tail"), max_length=MAX_TAIL, blank=True, default="", db_default="")
    allowed: Field[int, int] = models.PositiveBigIntegerField(_("allowed"), default=0)
    rejected: Field[int, int] = models.PositiveBigIntegerField(_("rejected"), default=0)
    estimated: Field[bool, bool] = models.BooleanField(_("estimated"), default=False, db_default=False)

    class Meta:
        abstract = True


class TopPartition(_Top):
    """One of the top partitions of a rule. For a rule in shadow, rejected means would have been rejected."""

    rule_slug: Field[str, str] = models.CharField(_("rule"), max_length=50)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("top partition")
        verbose_name_plural: ClassVar[LazyText] = _("top partitions")
        ordering: ClassVar[tuple[str, ...]] = ("-start", "rule_slug", "-allowed", "partition")
        indexes: ClassVar[list[Index]] = [Index(fields=["granularity", "start"], name="ratelimiter_top_start")]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["rule_slug", "granularity", "start", "partition"], name="ratelimiter_top_partition"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rule_slug} {self.partition} {self.start:%Y-%m-%d %H:%M}"


class TopCaller(_Top):
    """One of the top callers of one kind of identity, over all rules that count by this identity alone.

    A request that several such rules match counts once; it is rejected if one of them rejects it.
    """

    identity: Field[str, str] = models.CharField(_("identity"), max_length=200)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("top caller")
        verbose_name_plural: ClassVar[LazyText] = _("top callers")
        ordering: ClassVar[tuple[str, ...]] = ("-start", "identity", "-allowed", "partition")
        indexes: ClassVar[list[Index]] = [Index(fields=["granularity", "start"], name="ratelimiter_caller_start")]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["identity", "granularity", "start", "partition"], name="ratelimiter_top_caller"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.identity} {self.partition} {self.start:%Y-%m-%d %H:%M}"


class CallerUsage(models.Model):
    """Requests of one caller under one rule with `exact_usage`, in one hour: every one, and no estimate.

    identity: customer, user, api_key or ip; value: in clear, as rules count by it: a primary key, an address, what
    API_KEY_RESOLVER returns, else the hash of the key. Both are empty for callers that were not told apart, as too many
    waited to be collected; if only the identity is, the value is a digest, of what was too long or made by another key.
    hour: begins in UTC. rejected: for a rule in shadow, would have been rejected. Otherwise as in `UsageBucket`.
    """

    #: The columns that are added up.
    COUNTS: ClassVar[tuple[str, ...]] = ("allowed", "rejected", "rejected_by_other", "units")

    rule_slug: Field[str, str] = models.CharField(_("rule"), max_length=50)
    identity: Field[str, str] = models.CharField(_("identity"), max_length=16, blank=True)
    value: Field[str, str] = models.CharField(_("value"), max_length=200, blank=True)
    hour: Field[datetime, datetime] = models.DateTimeField(_("hour"))
    allowed: Field[int, int] = models.BigIntegerField(_("allowed"), default=0)
    rejected: Field[int, int] = models.BigIntegerField(_("rejected"), default=0)
    rejected_by_other: Field[int, int] = models.BigIntegerField(_("rejected by another rule"), default=0)
    units: Field[int, int] = models.BigIntegerField(_("units"), default=0)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("usage of a caller")
        verbose_name_plural: ClassVar[LazyText] = _("usage of callers")
        ordering: ClassVar[tuple[str, ...]] = ("-hour", "rule_slug", "identity", "value")
        indexes: ClassVar[list[Index]] = [
            Index(fields=["identity", "rule_slug", "hour"], name="ratelimiter_caller_hour"),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["identity", "value", "rule_slug", "hour"], name="ratelimiter_caller_usage"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_slug} {self.identity}:{self.value} {self.hour:%Y-%m-%d %H:%M}"


class UsageSample(models.Model):
    """Requests of one partition in one minute, for partitions that a hash selects: always the same ones.

    tier_slug: "" = no tier. partition_hash: its digest, as in the names of keys. tail: see `values.digests`. At most
    100 for each rule and minute.
    """

    rule_slug: Field[str, str] = models.CharField(_("rule"), max_length=50)
    tier_slug: Field[str, str] = models.CharField(_("tier"), max_length=50, blank=True, default="", db_default="")
    minute: Field[datetime, datetime] = models.DateTimeField(_("minute"))
    partition_hash: Field[str, str] = models.CharField(_("hash of the partition"), max_length=200)
    tail: Field[str, str] = models.CharField(_("tail"), max_length=MAX_TAIL, blank=True, default="", db_default="")
    count: Field[int, int] = models.PositiveBigIntegerField(_("requests"))

    class Meta:
        verbose_name: ClassVar[LazyText] = _("usage sample")
        verbose_name_plural: ClassVar[LazyText] = _("usage samples")
        ordering: ClassVar[tuple[str, ...]] = ("-minute", "rule_slug", "partition_hash")
        indexes: ClassVar[list[Index]] = [
            Index(fields=["minute"], name="ratelimiter_sample_minute"),
            Index(fields=["partition_hash", "minute"], name="ratelimiter_sample_hash"),
            # All columns that a forecast reads, by caller: a million rows are read from the index alone.
            Index(
                fields=["rule_slug", "partition_hash", "tier_slug", "minute", "count"], name="ratelimiter_sample_rule"
            ),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["rule_slug", "minute", "partition_hash", "tier_slug"], name="ratelimiter_usage_sample"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rule_slug} {self.partition_hash} {self.minute:%Y-%m-%d %H:%M}"


class UsageEpisode(models.Model):
    """A condition that has lasted since `began_at`. While its row exists, no further alert is sent for it.

    name: "behind", or "rejecting:" and the slug of a rule.
    """

    name: Field[str, str] = models.CharField(_("name"), max_length=100, unique=True)
    began_at: Field[datetime, datetime] = models.DateTimeField(_("began at"), auto_now_add=True)

    class Meta:
        verbose_name: ClassVar[LazyText] = _("usage episode")
        verbose_name_plural: ClassVar[LazyText] = _("usage episodes")
        ordering: ClassVar[tuple[str, ...]] = ("-began_at", "name")

    def __str__(self) -> str:
        return self.name
