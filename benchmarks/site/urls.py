"""The view, under each path that rules name; and the limiters that can be before it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.urls import path

from ..contest import QUOTA
from .settings import LIMITER, ON_LOOP

#: Paths with one name each: rules match by the name of a view. If it contains "refused", a caller has one request.
NAMES: Final = (
    "three",
    "free",
    "one",
    "refused",
    "known",
    "fetched-one",
    "minute",
)

#: Limiter: its wrapper of the view, in `benchmarks`; ours is a middleware.
LIMITERS: Final = {
    "": "",
    "ours": "",
    "ours, tiers": "",
    "floor": "site.floor:limited",
    "django-ratelimit": "peers.django_ratelimit:limited",
    "DRF": "peers.rest_framework:limited",
    "django-smart-ratelimit": "peers.smart_ratelimit:limited",
    "limits": "peers.limits:limited",
}


def view(request: HttpRequest) -> HttpResponse:
    """A minimal view."""
    return HttpResponse(b"ok")


async def async_view(request: HttpRequest) -> HttpResponse:
    """A minimal asynchronous view."""
    return HttpResponse(b"ok")


def limited(quota: int) -> Callable[..., Any]:
    """Return the view behind the limiter; asynchronous on an event loop, unless the limiter does not support it."""
    if not (wrapper := LIMITERS[LIMITER]):
        return async_view if ON_LOOP else view
    name, _, function = wrapper.partition(":")
    module = import_module(f"benchmarks.{name}")
    wrap = getattr(module, f"async_{function}", None) if ON_LOOP else None
    wrapped: Callable[..., Any] = wrap(async_view, quota) if wrap else getattr(module, function)(view, quota)
    return wrapped


def entry_points() -> dict[str, Callable[..., Any]]:
    """Return views behind our other entry points, and one of DRF for comparison; none with a limiter of others."""
    if LIMITER and not LIMITER.startswith("ours"):
        return {}
    views: dict[str, Callable[..., Any]] = import_module("benchmarks.ours.views").views(async_view if ON_LOOP else view)
    return views


urlpatterns = [
    *(path(f"{name}/", limited(1 if "refused" in name else QUOTA), name=name) for name in NAMES),
    *(path(f"{name}/", made, name=name) for name, made in entry_points().items()),
]

#: By path, the URLs to search for a request: Django tries them one by one, and later ones would take longer.
URLS_OF: Final = {f"/{pattern.pattern}": (pattern,) for pattern in urlpatterns}
