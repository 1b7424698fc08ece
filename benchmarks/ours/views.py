"""Our entry points other than the middleware, each before a minimal view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from rest_framework.throttling import BaseThrottle

from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.throttling import AnonRateThrottle, RuleThrottle, ScopedRateThrottle, UserRateThrottle

from ..contest import QUOTA
from ..peers.rest_framework import Unlimited

#: Throttles by the name of the view; rates are in the settings.
THROTTLES: Final[dict[str, tuple[type[BaseThrottle], ...]]] = {
    "drf": (),
    "by-user": (RuleThrottle,),
    "by-address-and-user": (RuleThrottle,),
    "anon-throttle": (AnonRateThrottle,),
    "user-throttle": (UserRateThrottle,),
    "scoped-throttle": (ScopedRateThrottle,),
}


class Scoped(Unlimited):
    """A DRF view with a scope."""

    throttle_scope = "uploads"


def views(view: Callable[[HttpRequest], Any]) -> dict[str, Callable[..., HttpResponse]]:
    """Return views by name: this one behind our decorator, and views of DRF behind throttles."""
    return {
        "rate": ratelimit(key="ip", rate=f"{QUOTA}/h")(view),
        "rate-refused": ratelimit(key="ip", rate="1/d")(view),
        "scope": ratelimit("scope")(view),
        **{
            name: (Scoped if name == "scoped-throttle" else Unlimited).as_view(throttle_classes=classes)
            for name, classes in THROTTLES.items()
        },
    }
