"""The limit for requests about one's own limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rest_framework.request import Request

from .. import limiter
from ..decision import NOTHING_TO_DECIDE, Decision, without
from ..identity import identify, partition
from ..limiter.charges import InlineRule, Only
from ..rules import inline
from ..throttling import RuleThrottle

if TYPE_CHECKING:  # see `..throttling`
    from rest_framework.views import APIView


class MeThrottle(RuleThrottle):
    """Applies only the rules of the view's `throttle_scope`, and a rate for each caller; other rules are not charged.

    Charges of the middleware's rules, from before authentication, are refunded.
    """

    #: Requests, and seconds.
    rate: ClassVar[tuple[int, int]] = (60, 60)

    def allow_request(self, request: Request, view: APIView) -> bool:
        http = request._request
        decision: Decision = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
        if decision.allowed and decision.results:
            limiter.refund(decision)
            http.ratelimit = without(decision, {result.rule.slug for result in decision.results})  # type: ignore[attr-defined]
        return super().allow_request(request, view)

    def asks(self, request: Request, view: APIView) -> tuple[str | None, tuple[InlineRule, ...]]:
        scope, _ = super().asks(request, view)
        rule = inline.rule_of(inline.slug_of(scope or ""), *self.rate, "caller")
        inline.register(rule)
        identity = identify(request._request)
        value = partition(identity, ("user",)) or partition(identity, ("api_key",))
        return Only(scope or ""), (InlineRule(rule, value),)
