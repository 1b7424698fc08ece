"""A caller's own limits as JSON; reading them uses no quota.

Field names are contract; an OpenAPI schema describes each by its help text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ..conf import settings
from ..decision import NOTHING_TO_DECIDE
from ..engine.base import NEVER, Verdict
from ..engine.coroutines import run_sync
from ..engine.limits import Limit
from ..exceptions import AccessDenied
from ..headers.syntax import name_of, quota_of
from ..identity import Identity, access_entry_for, digest, identify, partition
from ..inspection.counters import moment_of
from ..limiter.charges import limit_request
from ..limiter.io import THREAD
from ..limiter.path import peek_decision
from ..rules import cache
from ..rules.formatting import limit_in_words
from ..rules.records import LimitRecord, RuleRecord, TierRecord
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..usage.reports.report import usage_of
from ..values.partitions import PROVEN, is_address
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
        try:
            return Response(self.serializer_class(own_report(request._request)).data, headers=PRIVATE)
        except AccessDenied as error:
            raise PermissionDenied from error


class _ProvenIdentity(Identity):
    """The identity of a request without the values that a caller can choose: they do not prove who it is."""

    __slots__ = ()

    def value(self, name: str) -> str | None:
        return super().value(name) if _is_proof(name) else None


def own_report(request: HttpRequest) -> dict[str, Any]:
    """Return the caller's limits under all enforced rules, whatever requests these match. Uses no quota.

    Raises AccessDenied if an access entry denies the caller. A caller that an entry allows has no limits, and nobody
    has some while enforcement is stopped.
    """
    rules, identity = cache.current_rules(), _ProvenIdentity(request)
    granted = identity.entitlement(rules)
    access = access_entry_for(cache.access_list(), identity)
    if access is not None and access.action == "deny":
        raise AccessDenied(access)
    limits, digests = list[dict[str, Any]](), dict[str, str]()
    if access is None and rules.enforced and settings.ENABLED:
        for rule, tier, limit, verdict in _limits(rules, granted, request, identity):
            limits.append(_own_limit(rule, tier, limit, verdict))
            if (found := _digest(rule, identity)) is not None:
                digests[rule.slug] = found
    customer = identity.customer
    named = {"customer": customer.label} if customer else {}
    return {**named, "tier": granted.tier, "limits": limits, "usage": usage_of(digests)}


def _limits(
    rules: RuleSet, granted: Entitlement, request: HttpRequest, identity: Identity
) -> Iterator[tuple[RuleRecord, TierRecord | None, Limit, Verdict | None]]:
    """Yield the rules, each limit, and the verdict of a request now; `None` = not known."""
    asked = limit_request(request, earlier=NOTHING_TO_DECIDE, reach="all")._replace(identity=identity)
    for result in run_sync(peek_decision(THREAD, asked)).results:
        if result.mode == "enforce" and not _depends_on_request(result.rule):
            yield result.rule, result.tier, result.limit, result.verdict
    for rule in rules.rules:
        if rule.mode == "enforce" and _depends_on_request(rule):
            yield from ((rule, granted.tier, record.limit, None) for record in rule.limits_for(*granted))


def _own_limit(rule: RuleRecord, tier: TierRecord | None, limit: Limit, verdict: Verdict | None) -> dict[str, Any]:
    quota = quota_of(limit)
    found: dict[str, Any] = {
        "rule": rule.slug,
        "name": rule.name,
        "in_words": limit_in_words(LimitRecord(limit)),
        "counted_by": rule.partition_by,
        "cost": rule.cost,
        "policy": name_of(rule, tier, limit),
        "quota": quota.units,
        "window_seconds": quota.window,
    }
    if verdict is None:
        return found | dict.fromkeys(("remaining", "resets_in", "resets_at", "retry_in"))
    return found | {
        # If the caller lacks the value that the rule is split by, everything is rejected, whatever it costs.
        "remaining": 0 if verdict.charge.cost == NEVER else verdict.remaining,
        "resets_in": verdict.reset_after,
        "resets_at": moment_of(verdict.at_us + round(verdict.reset_after * 1_000_000)).isoformat(),
        "retry_in": 0.0 if verdict.allowed else verdict.retry_after,
    }


def _is_proof(name: str) -> bool:
    return name in PROVEN or is_address(name) or name in settings.TRUSTED_IDENTITIES


def _depends_on_request(rule: RuleRecord) -> bool:
    return not all(map(_is_proof, rule.partition_by))


def _digest(rule: RuleRecord, identity: Identity) -> str | None:
    """Return the digest of the caller's own counters under a rule; `None` = not known, or shared with all callers."""
    if not rule.partition_by or _depends_on_request(rule):
        return None
    value = partition(identity, rule.partition_by)
    if value is None and rule.missing_partition == "ip":
        value = partition(identity, ("ip",))
    return None if value is None else digest(value)
