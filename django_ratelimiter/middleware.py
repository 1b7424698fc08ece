"""The middleware: decides each request as soon as its view is known, and writes the response fields."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import unquote

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse, HttpResponseNotFound
from django.http.response import HttpResponseBase
from django.middleware.common import CommonMiddleware
from django.middleware.locale import LocaleMiddleware
from django.urls import NoReverseMatch, get_script_prefix, reverse, set_script_prefix
from django.utils.module_loading import import_string
from django.utils.translation import get_language

from . import limiter
from .conf import asset_paths, django_setting, settings
from .decision import NOTHING_TO_DECIDE, Decision
from .engine.coroutines import run_sync
from .headers.fields import write_fields
from .headers.responses import add_reference, may_wait, rejection_response
from .limiter import io, refunds
from .rules.routes import answers_options, is_translated, start_of

#: Paths of the health checks of load balancers and orchestrators, with or without a trailing slash.
HEALTH_PATHS: Final = frozenset({"/health", "/healthz", "/livez", "/readyz"})

#: The attribute of views that decide requests for other servers: requests to these views are not limited.
ASKED_BY_GATEWAYS: Final = "ratelimit_gateway"

#: Why no rule applies to a request; "" = some may.
Exemption = Literal["", "preflight", "health", "exempt", "redirect"]


class RateLimitMiddleware:
    """Place it after the authentication middleware, so that rules can be split by user.

    For a DRF view with a throttle class that decides rules, it decides only the rules that need no user, before
    the view authenticates. A path without a view is decided when its 404 is returned. If a queue delays a request, it
    waits here. It is asynchronous if the wrapped handler is: then a delay can have any length and blocks no thread.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async: bool = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self.aprocess_view  # type: ignore[method-assign, assignment]
            self.process_template_response = self.aprocess_template_response  # type: ignore[method-assign]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        outer = refunds.current_request.get()
        try:
            response: HttpResponseBase = self.get_response(request)
            if response.status_code == 404 and request.resolver_match is None:  # no view was found
                response = self.process_view(request) or response
            decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
            if decision is not NOTHING_TO_DECIDE:
                if decision.has_consequences:
                    run_sync(refunds.refund_unearned(io.THREAD, request, response))
                write_fields(request, response, decision)
        except BaseException:  # no response will follow whose end could release the leases
            run_sync(refunds.release_all(io.THREAD, request))
            raise
        finally:
            if refunds.current_request.get() is not outer:
                refunds.current_request.set(outer)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        outer = refunds.current_request.get()
        try:
            response: HttpResponseBase = await self.get_response(request)
            if response.status_code == 404 and request.resolver_match is None:
                response = await self.aprocess_view(request) or response
            decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
            if decision is not NOTHING_TO_DECIDE:
                if decision.has_consequences:
                    await refunds.refund_unearned(io.LOOP, request, response)
                write_fields(request, response, decision)
        except (Exception, CancelledError):  # cancelled: the caller has disconnected
            await refunds.release_all(io.LOOP, request)
            raise
        finally:
            if refunds.current_request.get() is not outer:
                refunds.current_request.set(outer)
        return response

    def process_view(self, request: HttpRequest, view: Any = None, *_captured: Any) -> HttpResponseBase | None:
        """Decide before the view runs, and wait for the delay. view: `None` = no view was found."""
        if exemption(request) or hasattr(view, ASKED_BY_GATEWAYS):
            return None
        later = hasattr(view, "cls") and decides_later(view)
        decision = limiter.check(request, before_authentication=later)
        if decision.has_consequences and decision.delay:
            io.sleep(decision.delay)
        return None if decision.allowed else rejection_response(request, decision)

    # Marked, so that a plain function in which a tool wraps it, such as old versions of sentry-sdk, is awaited as well.
    @markcoroutinefunction
    async def aprocess_view(self, request: HttpRequest, view: Any = None, *_captured: Any) -> HttpResponseBase | None:
        """`process_view` on an event loop."""
        if exemption(request) or hasattr(view, ASKED_BY_GATEWAYS):
            return None
        later = hasattr(view, "cls") and decides_later(view)
        decision = await limiter.acheck(request, before_authentication=later)
        if decision.has_consequences and decision.delay:
            await io.asleep(decision.delay)
        if decision.allowed:
            return None
        # A template of the project may read the user.
        return (
            await sync_to_async(rejection_response)(request, decision)
            if may_wait(request)
            else rejection_response(request, decision)
        )

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        """Add the reference to DRF's message for a rejection, before it is rendered."""
        decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
        if not decision.allowed:
            add_reference(response, decision)
        return response

    @markcoroutinefunction
    async def aprocess_template_response(self, request: HttpRequest, response: Any) -> Any:
        """`process_template_response` on an event loop."""
        return RateLimitMiddleware.process_template_response(self, request, response)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """Return the response for an exception that means that this request was rejected, such as `Ratelimited`.

        On an event loop Django calls this in a thread.
        """
        decision: Decision = getattr(request, "ratelimit", NOTHING_TO_DECIDE)
        if decision.allowed or getattr(exception, "decision", None) is not decision:
            return None
        return rejection_response(request, decision)


def exemption(request: HttpRequest) -> Exemption:
    """Return why no rule applies to this request: a preflight, a health check, or its path; "" = rules may apply.

    Callers choose method, headers and path, so these alone exempt nothing: no handler of the project runs for the
    preflight, and by default the view has a route of its own below the exempt path.
    """
    if request.method == "OPTIONS" and _is_answered_preflight(request):
        return "preflight"
    path = request.path_info  # not request.path: some servers let callers choose its prefix
    urlconf = getattr(request, "urlconf", None)
    if not path.startswith(_perhaps_exempt(urlconf)):
        return "" if request.resolver_match is not None else _redirect(request)
    if settings.EXEMPT_PATHS is not None:
        return "exempt"
    match = request.resolver_match
    exempt, is_health = exempt_paths(urlconf), path.removesuffix("/") in HEALTH_PATHS
    if match is None or not (is_health or path.startswith(exempt)):
        return "exempt" if path.startswith(exempt) else "" if match is not None else _redirect(request)
    start, _ = start_of(match.route or "")
    if is_health:
        return "health" if start.rstrip("/") == path.rstrip("/") else ""
    return "exempt" if start.startswith(exempt) else ""


def _redirect(request: HttpRequest) -> Exemption:
    """Return "redirect" if Django answers with the right spelling of this path: with a slash, or with a language."""
    appends, adds_language = _respelling_middleware(tuple(django_setting("MIDDLEWARE", ())))
    if appends and CommonMiddleware(HttpResponse).should_redirect_with_slash(request):
        return "redirect"
    if not adds_language:
        return ""
    answer = LocaleMiddleware(HttpResponse).process_response(request, HttpResponseNotFound())
    return "redirect" if answer.status_code != 404 else ""


@lru_cache(maxsize=10)
def _respelling_middleware(names: tuple[str, ...]) -> tuple[bool, bool]:
    """Return whether these include CommonMiddleware and LocaleMiddleware, or classes derived from them."""
    classes = [each for each in map(import_string, names) if isinstance(each, type)]
    return any(issubclass(each, CommonMiddleware) for each in classes), any(
        issubclass(each, LocaleMiddleware) for each in classes
    )


def _is_answered_preflight(request: HttpRequest) -> bool:
    """Return whether this is a CORS preflight that Django or DRF answers, without a handler of the project."""
    is_preflight = "Origin" in request.headers and "Access-Control-Request-Method" in request.headers
    return is_preflight and request.resolver_match is not None and answers_options(request.resolver_match.func)


@lru_cache(maxsize=100)
def _perhaps_exempt(urlconf: Any) -> tuple[str, ...]:
    """Return prefixes that include each exempt path, for a quick test; ("",) if paths depend on the language."""
    if settings.EXEMPT_PATHS is not None:
        return settings.EXEMPT_PATHS
    if is_translated(urlconf or django_setting("ROOT_URLCONF")):
        return ("",)
    return (*HEALTH_PATHS, *exempt_paths(urlconf))


def exempt_paths(urlconf: Any) -> tuple[str, ...]:
    """Return the prefixes of the exempt paths, to compare with `request.path_info`.

    urlconf: `None` = the project's.
    """
    if settings.EXEMPT_PATHS is not None:
        return settings.EXEMPT_PATHS
    urlconf = urlconf or django_setting("ROOT_URLCONF")
    return _usually_exempt(urlconf, get_language() if is_translated(urlconf) else None)


@lru_cache(maxsize=100)
def _usually_exempt(urlconf: Any, language: str | None) -> tuple[str, ...]:
    """Return the paths of the assets and of the admin: there an operator can repair a rule that rejects everyone.

    language: the language of the site's paths; `None` = they are the same in all languages.
    """
    assets, prefix = asset_paths(), get_script_prefix()
    set_script_prefix("/")  # `reverse` would add the prefix of this request
    try:
        admin = unquote(reverse("admin:index", urlconf))
    except NoReverseMatch:
        return assets
    finally:
        set_script_prefix(prefix)
    return assets if admin == "/" else (*assets, admin)  # an admin at the root would exempt the whole site


def forget_paths(**_signal: Any) -> None:
    """Clear the cached exempt paths, because settings or URLs have changed."""
    _usually_exempt.cache_clear()
    _perhaps_exempt.cache_clear()


setting_changed.connect(forget_paths, dispatch_uid="django_ratelimiter.middleware")


def decides_later(view: Any) -> bool:
    """Return whether this is a DRF view with a throttle class that decides rules."""
    made_by = getattr(view, "cls", None)
    if made_by is None:
        return False
    throttles: Any = getattr(view, "initkwargs", {}).get("throttle_classes", getattr(made_by, "throttle_classes", ()))
    return _decide_rules(tuple(throttles or ()))


@lru_cache(maxsize=100)
def _decide_rules(throttles: tuple[Any, ...]) -> bool:
    return any(getattr(throttle, "decides_rules", False) for throttle in throttles)
