"""For staff: one caller, and the acts of the caller's page. All are asked by POST, so that no key is in an address."""

from __future__ import annotations

import secrets
from typing import Any

from django.core.exceptions import ValidationError as ModelError
from django.utils.decorators import method_decorator
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from ..callers.acts import Act, ActRefused, GiveBack, ResetCounters
from ..callers.caller import KINDS, Caller, UnknownCaller, caller_of
from ..callers.grants import GrantMore, MoveTier, SetAccess
from ..callers.performing import MAX_REASON, perform
from ..callers.summary import summary_of
from ..databases import in_own_transactions
from ..exceptions import EngineUnavailable
from ..throttling import RuleThrottle
from ..values.access import ACTIONS
from .permissions import MayGrant, MaySeeCallers, MayUnblock


class RateLimitCallerQuerySerializer(serializers.Serializer[Any]):
    """Who the caller is."""

    kind = serializers.CharField(help_text=f"{', '.join(KINDS)} or digest.")
    value = serializers.CharField(
        help_text="The user's primary key or login name, an API key or its hash, an address, a session key, "
        "a partition such as header:X-Org=acme, or a digest."
    )
    known = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="What else is known, such as header:X-Org=acme."
    )


class RateLimitActSerializer(RateLimitCallerQuerySerializer):
    """What every act takes."""

    reason = serializers.CharField(max_length=MAX_REASON, help_text="Why: it stands in the admin's log.")
    act = serializers.RegexField(
        r"^[A-Za-z0-9_-]{8,64}$",
        required=False,
        help_text="A number of yours for this act. Sent again with the same number, it changes nothing twice.",
    )


class RateLimitResetSerializer(RateLimitActSerializer):
    """Counters to be reset, or units to be given back to one."""

    counters = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="Names of counters; empty = all of the caller's own."
    )
    units = serializers.IntegerField(
        required=False, min_value=1, help_text="Give so many units back to the one counter that is named."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "units" in attrs and len(attrs.get("counters", ())) != 1:
            raise ValidationError({"counters": ["Name one counter to give units back to."]})
        return attrs


class RateLimitGrantSerializer(RateLimitActSerializer):
    """One of multiplier, tier and access, and its end."""

    until = serializers.DateTimeField(help_text="When it ends.")
    multiplier = serializers.DecimalField(
        max_digits=8, decimal_places=3, required=False, help_text="Times each limit; the tier stays."
    )
    tier = serializers.CharField(required=False, help_text="Another tier, by its slug.")
    access = serializers.CharField(required=False, help_text=f"{' or '.join(ACTIONS)}: before any rule.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len({"multiplier", "tier", "access"} & set(attrs)) != 1:
            raise ValidationError({"multiplier": ["Give exactly one of multiplier, tier and access."]})
        return attrs


class RateLimitOutcomeSerializer(serializers.Serializer[Any]):
    """What became of an act."""

    changed = serializers.BooleanField(help_text="False = an act of this number was done already.")
    took = serializers.BooleanField(help_text="Whether it was found in force afterwards.")
    text = serializers.CharField()


@method_decorator(in_own_transactions, name="dispatch")
class _CallerView(GenericAPIView[Any]):
    """A view about one caller. answers: the serializer of the answer, for schemas; `None` = an object."""

    throttle_classes = (RuleThrottle,)
    throttle_scope = "ratelimit-callers"
    versioning_class = None
    filter_backends = ()
    pagination_class = None
    answers: type[serializers.Serializer[Any]] | None = None

    def read(self, request: Request) -> tuple[Caller, dict[str, Any]]:
        """Return the caller and what was sent. Raises ValidationError."""
        sent = self.get_serializer(data=request.data)
        sent.is_valid(raise_exception=True)
        fields = dict(sent.validated_data)
        try:
            return caller_of(fields["kind"], fields["value"], fields.get("known", ())), fields
        except UnknownCaller as error:
            raise ValidationError({"value": [str(error)]}) from error

    def act(self, request: Request, caller: Caller, act: Act, fields: dict[str, Any]) -> Response:
        number = fields.get("act") or secrets.token_urlsafe(9)
        try:
            outcome = perform(request.user, caller, act, fields["reason"], number)
        except ActRefused as error:
            raise ValidationError({"detail": [str(error)]}) from error
        except ModelError as error:
            raise ValidationError({"detail": error.messages}) from error
        except EngineUnavailable as error:
            return Response({"detail": str(error)}, status=status.HTTP_503_SERVICE_UNAVAILABLE)
        return Response(RateLimitOutcomeSerializer(outcome).data)


class CallerView(_CallerView):
    """A caller's tier and why, and all of the caller's counters as they are now. Nothing is charged."""

    serializer_class = RateLimitCallerQuerySerializer
    permission_classes = (MaySeeCallers,)

    def post(self, request: Request) -> Response:
        caller, _fields = self.read(request)
        return Response(summary_of(caller, request.user), headers={"Cache-Control": "private, no-store"})


class ResetView(_CallerView):
    """Reset counters of a caller, or give units back to one."""

    serializer_class = RateLimitResetSerializer
    permission_classes = (MayUnblock,)
    answers = RateLimitOutcomeSerializer

    def post(self, request: Request) -> Response:
        caller, fields = self.read(request)
        names = fields.get("counters", [])
        act = GiveBack(names[0], fields["units"]) if "units" in fields else ResetCounters(names)
        return self.act(request, caller, act, fields)


class GrantView(_CallerView):
    """Give a caller more, another tier, or access for a while."""

    serializer_class = RateLimitGrantSerializer
    permission_classes = (MayGrant,)
    answers = RateLimitOutcomeSerializer

    def post(self, request: Request) -> Response:
        caller, fields = self.read(request)
        return self.act(request, caller, _grant(fields), fields)


def _grant(fields: dict[str, Any]) -> Act:
    if "multiplier" in fields:
        return GrantMore(fields["multiplier"], fields["until"])
    if "tier" in fields:
        return MoveTier(fields["tier"], fields["until"])
    return SetAccess(fields["access"], fields["until"])
