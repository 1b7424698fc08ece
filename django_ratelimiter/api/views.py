"""A caller's own limits as JSON; reading them uses no quota.

Field names are contract; an OpenAPI schema describes each by its help text.
"""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ..headers.syntax import name_of, quota_of
from ..identity import identify
from ..inspection.counters import Counter, moment_of
from ..me import OwnRule, own_limits
from ..rules.records import TierRecord
from ..usage.reports.report import usage_of
from .throttling import MeThrottle

#: No cache may store the response.
PRIVATE: Final = {"Cache-Control": "private, no-store"}


#: The format of dates, whatever the formats of the project are.
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
    left = serializers.IntegerField(
        allow_null=True,
        help_text="Units of this limit; null = depends on the request, or not known, as while Redis is out of reach.",
    )
    remaining = serializers.IntegerField(
        allow_null=True,
        help_text="The most that the next request of this rule can cost, under all its limits; null as above.",
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
    allowed = serializers.IntegerField(allow_null=True, help_text="null = few.")
    rejected = serializers.IntegerField(allow_null=True, help_text="null = few.")
    rejected_by_other = serializers.IntegerField(allow_null=True, help_text="By another rule; null = not known.")
    units = serializers.IntegerField(allow_null=True, help_text="Of the allowed ones; null = 1 each, or not known.")
    known_from = serializers.CharField(help_text="exact; or top: among the top 100 of a rule in an hour.")
    estimated = serializers.BooleanField(
        help_text="Whether the figures are estimates from a sample of requests; else they are exact."
    )


class RateLimitUsageSerializer(serializers.Serializer[Any]):
    """The last 30 days, as far as they are known."""

    since = serializers.DateField(format=ISO_8601)
    until = serializers.DateField(format=ISO_8601)
    complete = serializers.BooleanField(help_text="Always false: only exact days have all requests.")
    explanation = serializers.CharField()
    days = RateLimitDaySerializer(many=True)


class RateLimitOwnReportSerializer(serializers.Serializer[Any]):
    """The caller's limits and usage."""

    customer = serializers.CharField(required=False, help_text="The name of the customer, if there is one.")
    tier = RateLimitOwnTierSerializer(allow_null=True)
    limits = RateLimitOwnLimitSerializer(many=True)
    usage = RateLimitUsageSerializer()


class IsKnownCaller(BasePermission):
    """Authenticated users, and requests with a known API key."""

    def has_permission(self, request: Request, view: Any) -> bool:
        request.user  # noqa: B018  authenticates, which sets the user on Django's request
        identity = identify(request._request)
        return identity.user_id is not None or identity.api_key is not None


class MeView(APIView):
    """The caller's own tier, limits and last 30 days. Reading them uses no quota."""

    permission_classes = (IsKnownCaller,)
    throttle_classes: Any = (MeThrottle,)
    throttle_scope = "ratelimit-me"
    versioning_class = None
    serializer_class = RateLimitOwnReportSerializer

    def get(self, request: Request) -> Response:
        return Response(self.serializer_class(own_report(request._request)).data, headers=PRIVATE)


def own_report(request: HttpRequest) -> dict[str, Any]:
    """Return the caller's tier, limits and usage. Raises PermissionDenied if an access entry denies the caller."""
    own = own_limits(request)
    if own.is_denied:
        raise PermissionDenied
    counters = [counter for each in own.rules for counter in each.counters]
    digests = {each.rule.slug: each.digest for each in counters if each.digest and not (each.shared or each.never)}
    limits = [_row(each, counter, own.tier) for each in (*own.rules, *own.others) for counter in each.counters]
    named = {"customer": own.customer.label} if own.customer else {}
    return {**named, "tier": own.tier, "limits": limits, "usage": usage_of(digests)}


def _row(own: OwnRule, counter: Counter, tier: TierRecord | None) -> dict[str, Any]:
    rule, limit, verdict, remaining = own.rule, counter.charge.limit, counter.verdict, own.remaining
    quota, rejecting = quota_of(limit), own.rejected_by[0].verdict if own.rejected_by else None
    return {
        "rule": rule.slug,
        "name": rule.name,
        "in_words": counter.limit,
        "counted_by": rule.partition_by,
        "cost": rule.cost,
        "policy": name_of(rule, tier, limit),
        "quota": quota.units,
        "window_seconds": quota.window,
        "left": counter.left,
        "remaining": remaining,
        "resets_in": verdict and verdict.reset_after,
        "resets_at": verdict and moment_of(verdict.at_us + round(verdict.reset_after * 1_000_000)).isoformat(),
        "retry_in": rejecting.retry_after if rejecting else None if remaining is None else 0.0,
    }
