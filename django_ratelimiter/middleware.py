"""The middleware: decides each request as soon as its view is known, and writes the fields of its response."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, get_script_prefix, get_urlconf, reverse
from django.utils.translation import get_language

from . import limiter
from .conf import asset_paths, django_setting, settings
from .headers import refusal, response_fields


class RateLimitMiddleware:
    """Place it after the authentication middleware, so that rules can ask for the user.

    A view of the REST framework with a throttle that decides rules gets only those that need no user here, before
    it authenticates anybody. A path that no view answers is decided when its 404 comes back.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        if response.status_code == 404 and request.resolver_match is None and not _is_exempt(request):
            decision = limiter.check(request)
            if not decision.allowed:
                response = refusal(request, decision)
        decided = getattr(request, "ratelimit", None)
        if decided is not None:
            for name, value in response_fields(decided).items():
                response.headers[name] = value
            if not decided.allowed and response.status_code in (429, 503):
                response.headers.setdefault("Cache-Control", "no-store")  # RFC 6585: a cache must not keep a 429
        return response

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponseBase | None:
        if _is_exempt(request):
            return None
        decision = limiter.check(request, before_authentication=_decides_later(view))
        return None if decision.allowed else refusal(request, decision)


def _is_exempt(request: HttpRequest) -> bool:
    """Whether no rule shall touch this request: an exempt path, or a browser's question before a CORS request."""
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        return "Origin" in request.headers
    if settings.EXEMPT_PATHS is not None:
        return request.path.startswith(settings.EXEMPT_PATHS)
    urlconf = get_urlconf() or django_setting("ROOT_URLCONF")
    return request.path.startswith(_usually_exempt(urlconf, get_script_prefix(), get_language(), asset_paths()))


@lru_cache(maxsize=100)
def _usually_exempt(urlconf: Any, root: str, language: str | None, assets: tuple[str, ...]) -> tuple[str, ...]:
    """The assets and the admin: where an operator would go to repair a rule that refuses everybody.

    root: where the site begins. language: the admin's path may begin with it (`i18n_patterns`).
    """
    try:
        admin = reverse("admin:index", urlconf)
    except NoReverseMatch:
        return assets
    return assets if admin == root else (*assets, admin)  # an admin at the root would exempt the whole site


def _decides_later(view: Any) -> bool:
    """Whether the view is one of the REST framework's with a throttle class that decides rules."""
    throttles: Any = getattr(view, "initkwargs", {}).get("throttle_classes")
    if throttles is None:
        throttles = getattr(getattr(view, "cls", None), "throttle_classes", None)
    return any(getattr(throttle, "decides_rules", False) for throttle in throttles or ())
