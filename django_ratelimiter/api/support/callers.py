"""For staff: one caller, and the acts of the caller's page. All are POST, so that no key is in a URL."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy
from rest_framework import serializers
from rest_framework.request import Request

from ...databases import in_own_transactions
from ...inspection.acts import ACTS, Act, Outcome, own_counters
from ...inspection.caller import KINDS, Caller, caller_of, named
from ...inspection.caller_report import CallerReport, report_of
from ...inspection.giving_back import MAX_LEASES, Lease, leases_of
from ...inspection.performing import MAX_REASON, perform
from ...inspection.report import members_of
from ..permissions import MayAct, MaySeeCallers
from .answers import fields_of
from .problems import ProblemView, StrictSerializer


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


@method_decorator(in_own_transactions, name="dispatch")
class CallerQueryView(ProblemView):
    """A view about one caller."""

    serializer_class: type[StrictSerializer] = RateLimitCallerQuerySerializer
    permission_classes: Any = (MaySeeCallers,)
    throttle_scope = "ratelimit-callers"

    def answer(self, request: Request, fields: dict[str, Any]) -> Any:
        caller, known = caller_of(fields["kind"], fields["value"], fields.get("known", ())), fields.get("known", ())
        return self.about(named(caller, request.user, known), request.user, fields)

    def about(self, caller: Caller, user: Any, fields: dict[str, Any]) -> Any:
        """Return the report about this caller for this user."""
        raise NotImplementedError


class CallerView(CallerQueryView):
    """A caller's tier and why, and the current state of all counters. Nothing is charged."""

    answers = CallerReport

    def about(self, caller: Caller, user: Any, fields: dict[str, Any]) -> CallerReport:
        return report_of(caller, user)


class Leases(NamedTuple):
    """The leases of a counter, the oldest first."""

    leases: Sequence[Lease]
    most: Annotated[int, "The maximum number of leases that are listed."]


class LeasesView(CallerQueryView):
    """The leases of a counter of requests in progress, the oldest first. Nothing is charged."""

    serializer_class = RateLimitLeasesQuerySerializer
    answers = Leases

    def about(self, caller: Caller, user: Any, fields: dict[str, Any]) -> Leases:
        counter = own_counters(caller, [fields["counter"]])[0]
        return Leases(leases_of(counter) if counter.leases else [], MAX_LEASES)


class ActView(CallerQueryView):
    """A view that acts on a caller, once for each number. act: what it does."""

    permission_classes = (MayAct,)
    answers = Outcome
    act: type[Act]

    def about(self, caller: Caller, user: Any, fields: dict[str, Any]) -> Outcome:
        act = self.act(**{name: fields[name] for name in members_of(self.act) if name in fields})
        return perform(user, caller, act, fields["reason"], fields.get("act") or secrets.token_urlsafe(9))


def _view_of(act: type[Act]) -> type[ActView]:
    """Return the view of an act. Its body has the fields of the act."""
    optional = [each.name for each in dataclasses.fields(act) if each.default is not dataclasses.MISSING]
    made = {"__doc__": act.__doc__, **fields_of(act, optional)}
    body = type(f"RateLimit{act.__name__}Serializer", (RateLimitActSerializer,), made)
    return type(f"{act.__name__}View", (ActView,), {"__doc__": act.__doc__, "act": act, "serializer_class": body})


#: The views of all acts, by kind.
ACT_VIEWS: Final = {kind: _view_of(act) for kind, act in ACTS.items()}
