"""Serializers of the responses. Field names are contract; the OpenAPI schema describes each by its help text."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from ..models import UsageBucket
from ..rules.formatting import limit_in_words, limits_in_words
from ..rules.records import LimitRecord, RuleRecord

# Kinds and modes are plain texts in the schema:
# enums could conflict with names of the project.


_NAME: Final = "null = not known, or you may not see it (permission reveal_caller), or Redis does not answer."
_FEW: Final = "null = few: an estimate below 100 is no figure."
_ESTIMATED: Final = "Whether the numbers are estimates from a sample; else they are exact."


class RateLimitLimitSerializer(serializers.Serializer[LimitRecord]):
    """One limit, in words and numbers."""

    in_words = serializers.SerializerMethodField()
    algorithm = serializers.CharField(source="limit.algorithm")
    quota = serializers.IntegerField(source="limit.quota", help_text="Units per window.")
    window_seconds = serializers.FloatField(
        source="limit.window", allow_null=True, help_text="null for calendar windows."
    )
    calendar = serializers.CharField(source="limit.calendar", allow_null=True, help_text="day, week, month or year.")
    timezone = serializers.CharField(
        source="limit.timezone", allow_null=True, help_text="Time zone of the calendar; null = UTC."
    )
    burst = serializers.IntegerField(
        source="limit.capacity", help_text="The largest cost that can pass at once, in units."
    )
    soft_quota = serializers.IntegerField(source="limit.soft_quota", allow_null=True)

    def get_in_words(self, record: LimitRecord) -> str:
        return limit_in_words(record)


class RateLimitTierLimitsSerializer(serializers.Serializer[Any]):
    """The limits of one tier."""

    tier = serializers.CharField(allow_null=True, help_text="A slug; null = every other tier.")
    unlimited = serializers.BooleanField()
    limits = RateLimitLimitSerializer(many=True)


class RateLimitRuleSerializer(serializers.Serializer[RuleRecord]):
    """A current rule."""

    slug = serializers.CharField()
    name = serializers.CharField()
    mode = serializers.CharField(help_text="off, shadow or enforce.")
    methods = serializers.SerializerMethodField(help_text="Empty = all.")
    path_kind = serializers.CharField(help_text="any, exact, prefix or route.")
    path = serializers.CharField()
    view_name = serializers.CharField()
    scope = serializers.CharField()
    counted_by = serializers.ListField(
        source="partition_by",
        child=serializers.CharField(),
        help_text="The identities that split its counters; empty = one counter for all.",
    )
    cost = serializers.IntegerField(help_text="Units that one request uses.")
    failure_policy = serializers.CharField()
    priority = serializers.IntegerField()
    in_words = serializers.SerializerMethodField(help_text="The limits of all tiers.")
    tiers = serializers.SerializerMethodField()

    def get_methods(self, rule: RuleRecord) -> list[str]:
        return sorted(rule.methods)

    def get_in_words(self, rule: RuleRecord) -> str:
        return limits_in_words(rule)

    def get_tiers(self, rule: RuleRecord) -> list[dict[str, Any]]:
        rows = [{"tier": tier, "unlimited": not some, "limits": some} for tier, some in rule.limits.items()]
        return list(RateLimitTierLimitsSerializer(rows, many=True).data)


class RateLimitBucketSerializer(serializers.ModelSerializer[UsageBucket]):
    """Requests that one rule decided for one tier in one bucket of time."""

    rule = serializers.CharField(source="rule_slug")
    tier = serializers.CharField(source="tier_slug", help_text="Empty = no tier.")
    granularity = serializers.CharField()
    degraded = serializers.IntegerField(help_text="Decided without Redis; a part of the others.")
    partitions = serializers.IntegerField(
        allow_null=True, help_text="The approximate number of different partitions; null = not known, as for minutes."
    )

    class Meta:
        model = UsageBucket
        fields = (
            "rule", "tier", "granularity", "start", "allowed", "rejected", "shadow_rejected", "soft_exceeded",
            "degraded", "partitions",
        )  # fmt: skip


class RateLimitTotalSerializer(serializers.Serializer[Any]):
    """Requests that one rule decided for one tier in the whole period."""

    rule = serializers.CharField(source="rule_slug")
    tier = serializers.CharField(source="tier_slug", help_text="Empty = no tier.")
    allowed = serializers.IntegerField(source="figures.allowed")
    rejected = serializers.IntegerField(source="figures.rejected")
    shadow_rejected = serializers.IntegerField(
        source="figures.shadow_rejected", help_text="Would have been rejected if the rule were enforced."
    )
    soft_exceeded = serializers.IntegerField(source="figures.soft_exceeded", help_text="A part of allowed.")
    degraded = serializers.IntegerField(
        source="figures.degraded", help_text="Decided without Redis; a part of the others."
    )
    rejection_rate = serializers.FloatField(
        source="figures.rejection_rate", allow_null=True, help_text="From 0 to 1; null without requests."
    )


class RateLimitNameSerializer(serializers.Serializer[Any]):
    """Who a caller is."""

    kind = serializers.CharField(help_text="The identity, such as user or ip.")
    value = serializers.CharField(
        help_text="Its value, such as a primary key or an address; of an API key as it is looked up: its hash, or "
        "“value:” and what API_KEY_RESOLVER returns."
    )


class RateLimitPartitionSerializer(serializers.Serializer[Any]):
    """One of the top partitions of a rule."""

    partition = serializers.CharField(help_text="The digest of the partition, as in Redis key names.")
    name = RateLimitNameSerializer(allow_null=True, help_text=_NAME)
    allowed = serializers.IntegerField(allow_null=True, help_text=_FEW)
    rejected = serializers.IntegerField(allow_null=True, help_text=_FEW)
    estimated = serializers.BooleanField(help_text=_ESTIMATED)


class RateLimitTopCallerSerializer(serializers.Serializer[Any]):
    """One of the top callers over all rules."""

    partition = serializers.CharField(help_text="The caller's digest, as in Redis key names.")
    name = RateLimitNameSerializer(allow_null=True, help_text=_NAME)
    requests = serializers.IntegerField(
        allow_null=True, help_text=f"Each counts once, however many rules matched it. {_FEW}"
    )
    allowed = serializers.IntegerField(allow_null=True, help_text=_FEW)
    rejected = serializers.IntegerField(allow_null=True, help_text=_FEW)
    estimated = serializers.BooleanField(help_text=_ESTIMATED)
    share = serializers.FloatField(
        allow_null=True, help_text="Of the requests that any rule matched, from 0 to 1; null = few, or none."
    )
    requests_before = serializers.IntegerField(
        allow_null=True, help_text="In the period before; null = few, or it was not counted completely."
    )


class RateLimitProblemSerializer(serializers.Serializer[Any]):
    """The reason why a request was rejected."""

    detail = serializers.CharField()
