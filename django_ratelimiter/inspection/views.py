"""The limits in a view's own code: its decorators and its throttles, which are run as for a real request.

Nothing else of the view runs: it authenticates and rejects nothing, and makes no response. Throttles with
code of their own would charge, so they are named and not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import unwrap
from typing import Any, Final, NamedTuple

from django.db import connections
from django.http.response import HttpResponseBase

from ..decision import Decision
from ..decorators import limits_of
from ..headers import add_reference
from ..rules.routes import class_of
from .request import BuiltRequest, has_limiter

#: The module whose `allow_request` only asks the limiter.
_OURS: Final = "django_ratelimiter.throttling"
#: The module whose `check_throttles` only calls the throttles.
_DRFS: Final = "rest_framework.views"
#: Uses the same user as the middleware.
_BY_SESSION: Final = "rest_framework.authentication.SessionAuthentication"
#: The modules of the methods that respond with 405 to other methods; a view's own `dispatch` may handle all.
_DISPATCHERS: Final = ("django.views.generic.base", "rest_framework.views")
#: The module of django-ninja's views.
_NINJAS: Final = "ninja.operation"


#: What a view's code calls as `limiter.check`.
Check = Callable[..., Decision]


@dataclass(slots=True)
class Step:
    """Something that the view's code does before its response."""

    #: Of the entry point.
    name: str
    #: Called with what decides in place of `limiter.check`.
    ask: Callable[[Check], object]
    #: That it names, if any.
    scope: str = ""
    #: Its exceptions reject the request by its limits.
    is_entry_point: bool = True


@dataclass(slots=True)
class ViewCode:
    """What a view does, in order."""

    #: Before a DRF view knows the user.
    first: list[Step] = field(default_factory=list)
    #: Afterwards.
    then: list[Step] = field(default_factory=list)
    #: Makes the framework's response to an exception of a step; `None` = Django does.
    respond: Callable[[Exception], HttpResponseBase] | None = None
    #: Names of the view's own code that limits it.
    unexplained: list[str] = field(default_factory=list)
    #: Of the response if no code of the project handles the request: 404 = no view does, 405 = no method of the view.
    status: int | None = None


def code_of(http: BuiltRequest) -> ViewCode:
    """Return what the view of this request does."""
    found, match = ViewCode(), http.resolver_match
    if match is None:
        found.status = 404
        return found
    view: Any = match.func
    if getattr(view, "__module__", "") == _NINJAS:
        found.unexplained.append("django-ninja")
    cls = class_of(view)
    made = _made(view, cls, http) if cls is not None else None
    found.first = _steps(view, http, made, "dispatch")
    if made is not None and made.dispatch.__module__ in _DISPATCHERS and _handler(made, http) is None:
        found.status = 405
    if made is not None and hasattr(made, "check_throttles"):
        _add_frameworks(found, made, http)
    elif made is not None:
        found.then = _handled(made, http)
    return found


def checks_credentials(http: BuiltRequest) -> bool:
    """Return whether the view of this request is a DRF view that accepts other credentials than sessions."""
    view: Any = http.resolver_match.func if http.resolver_match else None
    chosen = getattr(view, "initkwargs", None) or {}
    by_default = getattr(getattr(view, "cls", None), "authentication_classes", ())
    return any(not _is_by_session(each) for each in chosen.get("authentication_classes", by_default))


def _is_by_session(authentication: Any) -> bool:
    classes = getattr(authentication, "__mro__", ())  # DRF calls it, so it may be a function
    return any(f"{each.__module__}.{each.__qualname__}" == _BY_SESSION for each in classes)


def _steps(view: Any, request: Any, made: Any, method: str) -> list[Step]:
    """Return the decorators of a view, or of a method. made: the instance that `method_decorator` would bind it to."""
    bound = getattr(made, method, None) if made is not None else None
    return [
        Step("scope" if limit.scope else "rate", partial(limit.check, request, bound=bound), limit.scope)
        for limit in limits_of(view)
    ]


def _handled(made: Any, request: Any) -> list[Step]:
    """Return the decorators of the method that responds; empty if the view does not allow the request's method."""
    handler = _handler(made, request)
    return [] if handler is None else _steps(handler, request, made, request.method.lower())


def _handler(made: Any, request: Any) -> Any:
    """Return the method that responds; `None` if the view does not allow the request's method."""
    name = (request.method or "").lower()
    return getattr(made, name, None) if name in made.http_method_names else None


def _made(view: Any, cls: Any, http: BuiltRequest) -> Any:
    """Return an instance of a view's class, as `as_view` makes it for a request."""
    match: Any = http.resolver_match
    made = cls(**(getattr(view, "initkwargs", None) or getattr(view, "view_initkwargs", None) or {}))
    actions = getattr(view, "actions", None) or {}
    if actions:
        made.action_map = actions
        for method, action in actions.items():
            setattr(made, method, getattr(made, action))
    made.request, made.args, made.kwargs = http, match.args, match.kwargs
    if not hasattr(made, "head") and hasattr(made, "get"):
        made.head = made.get
    return made


def _add_frameworks(found: ViewCode, made: Any, http: BuiltRequest) -> None:
    """Add what a DRF view does, in the order of its own `initial`."""
    request = made.initialize_request(http, *made.args, **made.kwargs)
    made.request, made.headers = request, made.default_response_headers
    throttles = made.get_throttles()
    asked = [each for each in throttles if type(each).allow_request.__module__ == _OURS]
    found.unexplained += [type(each).__qualname__ for each in throttles if each not in asked]
    decorated = type(made).check_throttles
    check_throttles = unwrap(decorated)
    if check_throttles.__module__ != _DRFS:
        found.unexplained.append(check_throttles.__qualname__)
        asked = []

    def begin(_check: Check) -> None:
        made.format_kwarg = made.get_format_suffix(**made.kwargs)
        request.accepted_renderer, request.accepted_media_type = made.perform_content_negotiation(request)
        request.version, request.versioning_scheme = made.determine_version(request, *made.args, **made.kwargs)
        request.user, request.auth = http.user, None  # no credentials are checked here

    def throttle(check: Check) -> None:
        made.get_throttles = lambda: [_Throttle(each, check) for each in asked]
        check_throttles(made, request)

    def respond(error: Exception) -> HttpResponseBase:
        with _transactions_as_they_are():
            response = made.handle_exception(error)
        final: HttpResponseBase = made.finalize_response(request, response, *made.args, **made.kwargs)
        decision = getattr(http, "ratelimit", None)
        if decision is not None and not decision.allowed and has_limiter():
            add_reference(final, decision)
        if hasattr(final, "render"):
            final.render()
        return final

    found.then = [
        Step("throttle", begin, is_entry_point=False),
        *_steps(decorated, request, None, ""),
        Step("throttle", throttle, str(getattr(made, "throttle_scope", None) or "")),
        *_handled(made, request),
    ]
    found.respond = respond


class _Throttle(NamedTuple):
    """A throttle of ours that asks `check`. DRF calls it."""

    throttle: Any
    check: Check

    def allow_request(self, request: Any, view: Any) -> bool:
        self.throttle._times = 0  # it charges nothing
        allowed: bool = self.throttle.allow_request_by(self.check, request, view)
        return allowed

    def wait(self) -> float | None:
        seconds: float | None = self.throttle.wait()
        return seconds


@contextmanager
def _transactions_as_they_are() -> Iterator[None]:
    """Undo DRF's rollback after an error if ATOMIC_REQUESTS is on."""
    found = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
    before = [each.get_rollback() for each in found]
    try:
        yield
    finally:
        for connection, value in zip(found, before, strict=True):
            connection.set_rollback(value)
