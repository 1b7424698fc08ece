"""The view, under each path that rules name; and the limiters that may stand before it."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.urls import path

from .settings import LIMITER

#: Paths of one name each: rules are met by the name of a view.
NAMES: Final = ("free", "one", "three", "known", "minute", "synced")

#: Limiter: what wraps the view, in `benchmarks`; ours is a middleware.
LIMITERS: Final = {
    "": "",
    "ours": "",
    "ours, tiers": "",
    "bare": "site.bare:limited",
    "django-ratelimit": "peers.django_ratelimit:limited",
    "DRF": "peers.rest_framework:limited",
    "DRF, no limiter": "peers.rest_framework:unlimited",
    "django-smart-ratelimit": "peers.smart_ratelimit:limited",
    "limits": "peers.limits:limited",
    "throttled-py": "peers.throttled:limited",
    "pyrate-limiter": "peers.pyrate:limited",
}


def view(request: HttpRequest) -> HttpResponse:
    """The least that a view does."""
    return HttpResponse(b"ok")


if wrapper := LIMITERS[LIMITER]:
    module, _, function = wrapper.partition(":")
    view = getattr(import_module(f"benchmarks.{module}"), function)(view)

urlpatterns = [path(f"{name}/", view, name=name) for name in NAMES]
