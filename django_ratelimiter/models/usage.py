"""What was counted, as it was collected from the engine."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class UsageBucket(models.Model):
    """What one rule decided for one tier in one span of time, in requests.

    rule_slug, tier_slug: texts and no foreign keys, so that a report outlives its rule; tier_slug "" = no tier.
    allowed, denied: by the rule itself, whatever other rules said. soft_exceeded is a part of allowed.
    shadow_denied: would have been denied, were the rule enforced.
    """

    class Granularity(models.TextChoices):
        MINUTE = "minute", _("minute")

    rule_slug = models.CharField(_("rule"), max_length=50)
    tier_slug = models.CharField(_("tier"), max_length=50, blank=True, default="")
    granularity = models.CharField(
        _("granularity"), max_length=8, choices=Granularity.choices, default=Granularity.MINUTE
    )
    start = models.DateTimeField(_("start"))
    allowed = models.PositiveBigIntegerField(_("allowed"), default=0)
    denied = models.PositiveBigIntegerField(_("denied"), default=0)
    shadow_denied = models.PositiveBigIntegerField(_("denied in shadow"), default=0)
    soft_exceeded = models.PositiveBigIntegerField(_("soft quota exceeded"), default=0)

    class Meta:
        verbose_name = _("usage bucket")
        verbose_name_plural = _("usage buckets")
        ordering = ("-start", "rule_slug", "tier_slug")
        indexes: ClassVar = [models.Index(fields=["granularity", "start"], name="ratelimiter_usage_start")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["rule_slug", "tier_slug", "granularity", "start"], name="ratelimiter_usage_bucket"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.rule_slug}|{self.tier_slug} {self.start:%Y-%m-%d %H:%M}"


class UsageBatch(models.Model):
    """A batch of counts that is in the buckets already. Its name keeps it from being added twice."""

    batch_id = models.CharField(_("batch"), max_length=200, unique=True)
    collected_at = models.DateTimeField(_("collected at"), auto_now_add=True)

    class Meta:
        verbose_name = _("usage batch")
        verbose_name_plural = _("usage batches")
        ordering = ("-collected_at", "-pk")

    def __str__(self) -> str:
        return self.batch_id
