"""Serializers of the response. Field names are contract; an OpenAPI schema describes each by its help text.

Times are in ISO 8601, whatever the project's formats are.
"""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

ISO_8601: Final = "iso-8601"


class RateLimitOwnTierSerializer(serializers.Serializer[Any]):
    """A tier."""

    slug = serializers.CharField()
    name = serializers.CharField()


class RateLimitOwnLimitSerializer(serializers.Serializer[Any]):
    """One limit of the caller, with the caller's tier and other assignments."""

    rule = serializers.CharField()
    name = serializers.CharField()
    in_words = serializers.CharField()
    counted_by = serializers.ListField(child=serializers.CharField())
    cost = serializers.IntegerField(help_text="Units that one request uses, unless the code of a view sets its cost.")
    policy = serializers.CharField(help_text="Its name in the RateLimit fields.")
    quota = serializers.IntegerField(
        help_text="Units per window; of a bucket, what it holds when full. As in the fields."
    )
    window_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Seconds in which the quota comes back; null for calendars and for requests in progress.",
    )
    remaining = serializers.IntegerField(
        allow_null=True,
        help_text="Units, not requests; null = depends on the request, or Redis is out of reach.",
    )
    resets_in = serializers.FloatField(
        allow_null=True, help_text="Seconds until the full quota is back; null = not known."
    )
    resets_at = serializers.DateTimeField(allow_null=True)  # a text already
    retry_in = serializers.FloatField(
        allow_null=True, help_text="Seconds until a request of this cost would pass; null = never, or not known."
    )


class RateLimitDaySerializer(serializers.Serializer[Any]):
    """Known requests of the caller that one rule matched on one day."""

    date = serializers.DateField(format=ISO_8601)
    rule = serializers.CharField()
    requests = serializers.IntegerField(allow_null=True, help_text="null = few: an estimate below 100 is no figure.")
    allowed = serializers.IntegerField(allow_null=True, help_text="null = few, or not known.")
    rejected = serializers.IntegerField(allow_null=True, help_text="null = few, or not known.")
    known_from = serializers.CharField(help_text="top (among the top 100 of a rule in an hour) or sample.")
    estimated = serializers.BooleanField(
        help_text="Whether the figures are estimates from a sample of requests; else they are exact."
    )


class RateLimitUsageSerializer(serializers.Serializer[Any]):
    """The last 30 days, as far as they are known."""

    since = serializers.DateField(format=ISO_8601)
    until = serializers.DateField(format=ISO_8601)
    complete = serializers.BooleanField(help_text="Always false: most requests are counted by rule and tier only.")
    explanation = serializers.CharField()
    days = RateLimitDaySerializer(many=True)


class RateLimitOwnReportSerializer(serializers.Serializer[Any]):
    """The caller's limits and usage."""

    tier = RateLimitOwnTierSerializer(allow_null=True)
    limits = RateLimitOwnLimitSerializer(many=True)
    usage = RateLimitUsageSerializer()
