"""The caller's own limits as JSON. Field names are contract; an OpenAPI schema describes each by its help text."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ..exceptions import AccessDenied
from ..identity import identify
from .me import own_report
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
        try:
            return Response(self.serializer_class(own_report(request._request)).data, headers=PRIVATE)
        except AccessDenied as error:
            raise PermissionDenied from error
