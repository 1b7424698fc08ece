"""Throttle classes for Django REST framework."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from . import holding, limiter
from .decision import UNAVAILABLE_RETRY_SECONDS
from .headers import retry_after


class LimiterUnavailable(APIException):
    """503: a rule that must not be passed unchecked could not be checked."""

    status_code = 503
    default_detail = _("This service cannot take the request right now. Please try again shortly.")
    default_code = "temporary_reduced_capacity"
    wait = UNAVAILABLE_RETRY_SECONDS  # sent as Retry-After by the framework


class RuleThrottle(BaseThrottle):
    """Decides the rules that need the authenticated user, and those of the view's `throttle_scope`.

    What the middleware decided before authentication is not decided again; if the request is refused here, what
    it spent there is given back in the same call. A request that a queue delays waits here, as long as the rule
    lets a worker wait.
    """

    #: Tells the middleware to leave rules that need the user to this class.
    decides_rules = True

    def allow_request(self, request: Request, view: APIView) -> bool:
        decision = limiter.check(request, scope=getattr(view, "throttle_scope", None))
        if decision.allowed:
            holding.hold(decision)
            return True
        if decision.unavailable:
            raise LimiterUnavailable
        # Answered here, not through wait(): that would have to keep this request's answer on the instance.
        view.throttled(request, retry_after(decision))  # type: ignore[arg-type]  # None = never, says the framework
