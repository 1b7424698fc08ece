"""For staff: one caller, and the acts of the caller's page. All are POST, so that no key is in a URL."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from django.core.exceptions import ValidationError as ModelError
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from ...databases import in_own_transactions
from ...exceptions import EngineUnavailable
from ...inspection.acts import (
    Act,
    EndAccess,
    EndLease,
    GiveBack,
    GrantMore,
    InvalidAct,
    MoveTier,
    Outcome,
    ResetCounters,
    SetAccess,
    counter_named,
)
from ...inspection.caller import KINDS, Caller, UnknownCaller, caller_of
from ...inspection.caller_report import CallerReport, report_of
from ...inspection.giving_back import MAX_LEASES, Lease, leases_of
from ...inspection.performing import MAX_REASON, perform
from ...inspection.report import encoded
from ...throttling import RuleThrottle
from ...values.access import ACTIONS
from ..permissions import MayGrant, MaySeeCallers, MayUnblock
from .problems import ProblemView, StrictSerializer, problem_of

#: Responses about one caller, which no cache may store.
PRIVATE = {"Cache-Control": "private, no-store"}


class RateLimitCallerQuerySerializer(StrictSerializer):
    """The caller."""

    kind = serializers.CharField(help_text=f"{', '.join(KINDS)}, digest or reference.")
    value = serializers.CharField(
        help_text="The user's primary key or login name, an API key or its hash, an address, a session key, "
        "a partition such as header:X-Org=acme, a digest, or the reference of a rejection such as export#eJL8d1F2."
    )
    known = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Other values of the caller's requests, such as header:X-Org=acme.",
    )


class RateLimitLeasesQuerySerializer(RateLimitCallerQuerySerializer):
    """A counter of requests in progress."""

    counter = serializers.CharField(help_text="The name of the counter, as listed in the caller's counters.")


class RateLimitActSerializer(RateLimitCallerQuerySerializer):
    """The fields of every act."""

    reason = serializers.CharField(max_length=MAX_REASON, help_text="The reason, which is written to the admin's log.")
    act = serializers.RegexField(
        r"^[A-Za-z0-9_-]{8,64}$",
        required=False,
        help_text="Your own number for this act. If it is sent again with the same number, nothing changes a "
        "second time.",
        error_messages={"invalid": gettext_lazy("Write 8 to 64 letters, digits, “-” or “_”.")},
    )


class RateLimitResetSerializer(RateLimitActSerializer):
    """Counters to reset, or units to refund to one counter."""

    counters = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="Names of counters; empty = all of the caller's own."
    )
    units = serializers.IntegerField(
        required=False, min_value=1, help_text="Refund this number of units to the one counter that is named."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "units" in attrs and len(attrs.get("counters", ())) != 1:
            raise ValidationError({"counters": [_("Name one counter to give units back to.")]})
        return attrs


class RateLimitEndLeaseSerializer(RateLimitActSerializer):
    """A lease to end."""

    counter = serializers.CharField(help_text="The name of the counter that holds it.")
    began_us = serializers.IntegerField(
        min_value=0, max_value=2**53, help_text="When it began, as in the list of leases."
    )


class RateLimitGrantSerializer(RateLimitActSerializer):
    """A multiplier, a tier or access, and its end."""

    until = serializers.DateTimeField(help_text="When it ends.")
    multiplier = serializers.DecimalField(
        max_digits=8, decimal_places=3, required=False, help_text="Times each limit; the tier stays."
    )
    tier = serializers.CharField(required=False, help_text="Another tier, by its slug.")
    access = serializers.CharField(required=False, help_text=f"{' or '.join(ACTIONS)}: checked before any rule.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len({"multiplier", "tier", "access"} & set(attrs)) != 1:
            raise ValidationError({"multiplier": [_("Give exactly one of multiplier, tier and access.")]})
        return attrs


@method_decorator(in_own_transactions, name="dispatch")
class CallerQueryView(ProblemView):
    """A view about one caller. answers: what it responds with, for schemas."""

    throttle_classes = (RuleThrottle,)
    throttle_scope = "ratelimit-callers"
    answers: type[Any]

    def read(self, request: Request) -> tuple[Caller, dict[str, Any]]:
        """Return the caller and the data that was sent. Raises ValidationError."""
        sent = self.get_serializer(data=request.data)
        sent.is_valid(raise_exception=True)
        fields = dict(sent.validated_data)
        try:
            return caller_of(fields["kind"], fields["value"], fields.get("known", ())), fields
        except UnknownCaller as error:
            raise ValidationError({"value": [str(error)]}) from error


class CallerView(CallerQueryView):
    """A caller's tier and why, and the current state of all counters. Nothing is charged."""

    serializer_class = RateLimitCallerQuerySerializer
    permission_classes = (MaySeeCallers,)
    answers = CallerReport

    def post(self, request: Request) -> Response:
        caller, _fields = self.read(request)
        return Response(encoded(report_of(caller, request.user)), headers=PRIVATE)


class Leases(NamedTuple):
    """The leases of a counter, the oldest first."""

    leases: Sequence[Lease]
    most: Annotated[int, "The maximum number of leases that are listed."]


class LeasesView(CallerQueryView):
    """The leases of a counter of requests in progress, the oldest first. Nothing is charged."""

    serializer_class = RateLimitLeasesQuerySerializer
    permission_classes = (MaySeeCallers,)
    answers = Leases

    def post(self, request: Request) -> Response:
        caller, fields = self.read(request)
        try:
            counter = counter_named(caller, fields["counter"])
        except InvalidAct as error:
            raise ValidationError({"counter": [str(error)]}) from error
        try:
            held = leases_of(counter) if counter.leases else []
        except EngineUnavailable as error:
            return _unavailable(error)
        return Response(encoded(Leases(held, MAX_LEASES)), headers=PRIVATE)


class ActView(CallerQueryView):
    """A view that acts on a caller, once for each number."""

    answers = Outcome

    def act_of(self, fields: dict[str, Any]) -> Act:
        """Return the requested act."""
        raise NotImplementedError

    def post(self, request: Request) -> Response:
        caller, fields = self.read(request)
        number = fields.get("act") or secrets.token_urlsafe(9)
        try:
            outcome = perform(request.user, caller, self.act_of(fields), fields["reason"], number)
        except InvalidAct as error:
            raise ValidationError({"detail": [str(error)]}) from error
        except ModelError as error:
            raise ValidationError({"detail": error.messages}) from error
        except EngineUnavailable as error:
            return _unavailable(error)
        return Response(encoded(outcome), headers=PRIVATE)


class ResetView(ActView):
    """Reset counters of a caller, or refund units of one."""

    serializer_class = RateLimitResetSerializer
    permission_classes = (MayUnblock,)

    def act_of(self, fields: dict[str, Any]) -> Act:
        names = fields.get("counters", [])
        return GiveBack(names[0], fields["units"]) if "units" in fields else ResetCounters(names)


class EndLeaseView(ActView):
    """End a lease: its slot is free at once. The request continues."""

    serializer_class = RateLimitEndLeaseSerializer
    permission_classes = (MayUnblock,)

    def act_of(self, fields: dict[str, Any]) -> Act:
        return EndLease(fields["counter"], fields["began_us"])


class GrantView(ActView):
    """Give a caller more quota, another tier, or access for a while."""

    serializer_class = RateLimitGrantSerializer
    permission_classes = (MayGrant,)

    def act_of(self, fields: dict[str, Any]) -> Act:
        if "multiplier" in fields:
            return GrantMore(fields["multiplier"], fields["until"])
        if "tier" in fields:
            return MoveTier(fields["tier"], fields["until"])
        return SetAccess(fields["access"], fields["until"])


class EndAccessView(ActView):
    """End the access entry of a caller now, if it has an end."""

    serializer_class = RateLimitActSerializer
    permission_classes = (MayGrant,)

    def act_of(self, fields: dict[str, Any]) -> Act:
        return EndAccess()


def _unavailable(error: EngineUnavailable) -> Response:
    """Return a 503. An exception would roll back the transaction of ATOMIC_REQUESTS, including the log entry."""
    code = status.HTTP_503_SERVICE_UNAVAILABLE
    return Response(problem_of(code, {"detail": str(error)}), status=code)
