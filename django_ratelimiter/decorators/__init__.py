"""`@ratelimit` for functions, methods and classes: by the scope of rules, or by a rate written in code.

The names and arguments are those of django-ratelimit, so that a project changes the import and keeps its code.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial, wraps
from types import FrameType
from typing import Any, Final, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from .. import ALL, UNSAFE, limiter
from ..conf import django_setting
from ..decision import NOTHING_TO_DECIDE, Decision
from ..exceptions import LimitExceeded, told_safely
from ..headers import words_of
from ..limiter import io
from ..limiter.metered import MeteredCost
from ..logs import logger
from ..rules.routes import class_of, is_of_api_view
from .arguments import (
    NO_CALL,
    STAND_INS,
    Cost,
    Key,
    LimiterCall,
    Methods,
    Rate,
    RatelimitArguments,
    django_request,
    name_of,
)
from .usage import aget_usage, ais_ratelimited, get_usage, is_ratelimited

__all__ = [
    "ALL",
    "UNSAFE",
    "Ratelimited",
    "aget_usage",
    "ais_ratelimited",
    "get_usage",
    "is_ratelimited",
    "ratelimit",
]

#: The module of django-ninja's views.
_NINJAS_VIEWS: Final = "ninja.operation"

#: By module: its `__spec__`, which a reload replaces, and how many of its decorators have each name and number so far.
_decorators: Final[dict[str, tuple[object, Counter[tuple[str, int]]]]] = {}

View = TypeVar("View", bound=Callable[..., Any])


class Ratelimited(PermissionDenied):
    """A request was rejected. The middleware answers with 429; without the middleware, Django answers with 403.

    decision: the decision that rejected it.
    """

    def __init__(self, decision: Decision = NOTHING_TO_DECIDE) -> None:
        super().__init__(_("Too many requests"))  # a project's page for 403 may show it
        self.decision = decision


def ratelimit(
    group: str | None = None,
    key: Key | None = None,
    rate: Rate = None,
    method: Methods = ALL,
    block: bool = True,
    *,
    cost: Cost = None,
    algorithm: str | None = None,
    cost_after: Callable[[Any], int] | None = None,
    failure_policy: str | None = None,
) -> Callable[[View], View]:
    """Limit a view: a function, a method or a class, synchronous or asynchronous.

    group: without key and rate, the scope of the rules to apply. Else the name under which several views share a count;
    `None` = the view's own. key: what the count is split by: "ip", "user", "user_or_ip", "header:NAME", "get:NAME",
    "post:NAME", another identity of rules such as "host", or a callable of group and request, or its dotted path; a
    request without it counts by its address.
    rate: "100/h", "10/30s", (quota, seconds), or a callable of group and request, or its dotted path; `None` = no
    limit, a quota of 0 = reject all. method: the methods that are limited. block: raise Ratelimited; else only set
    `request.limited`. cost: units of a request, or a function of the request that returns them; `None` = 1, or the
    rule's cost. algorithm: `None` =
    `sliding_window_log` up to 10,000 requests, else `sliding_window_counter`. cost_after: a function of the response
    that returns the units to charge, such as its number of rows; `cost` is an estimate then, which must be allowed for
    the view to begin.
    failure_policy: of a rate, what happens while Redis is out of reach: "local", "open" or "closed"; `None` = "local",
    unless RATELIMIT_FAIL_OPEN is set.
    """
    given = RatelimitArguments(group, key, rate, method, block, cost, algorithm, cost_after, failure_policy).check()

    def decorate(view: View) -> View:
        caller = sys._getframe(1)
        if not isinstance(view, type):
            named = view.func if isinstance(view, partial) else view
            name = name_of(view) if view.__module__ != STAND_INS else ""
            return cast(View, wrapped(view, _is_async(view), name, named.__module__, caller))
        # DRF views know their user only when their throttles run.
        name = "check_throttles" if hasattr(view, "check_throttles") else "dispatch"
        is_async = name == "dispatch" and getattr(view, "view_is_async", False)
        setattr(view, name, wrapped(getattr(view, name), is_async, name_of(view), view.__module__, caller))
        return view

    def wrapped(view: Any, is_async: bool, name: str, home: str, caller: FrameType) -> Any:
        number = getattr(view, "ratelimits", 0) + 1
        made: Any = getattr(view, "cls", None)
        within = _within_api_view(made) if is_of_api_view(made) else 0
        if name and not group:
            name = _distinct(name, number + within, home, caller)
        arguments = replace(given, name=name, number=number + within)
        arguments.register_rule(view)
        wrapper: Any = (_awrapper if is_async else _wrapper)(view, arguments)
        if not hasattr(view, "__name__"):  # a callable object: as Django names it
            wrapper.__name__ = wrapper.__qualname__ = type(view).__name__
        wrapper.ratelimits = number
        wrapper.ratelimit_limits = (*getattr(view, "ratelimit_limits", ()), arguments)
        if arguments.scope and method == ALL:
            wrapper.ratelimit_scopes = (*getattr(view, "ratelimit_scopes", ()), group)
        if is_of_api_view(made):
            made.ratelimits = number  # for the OpenAPI schema, which only sees the class
        return wrapper

    return decorate


def _distinct(name: str, number: int, home: str, frame: FrameType) -> str:
    """Return the name of the counter of a decorator that is called in this frame, on a view of the module `home`.

    All processes must use the same, whatever they import first: it depends on the module whose import calls the
    decorator, and on the decorators before it there. Called later, perhaps for each request, it has the view's name.
    """
    module = _importing(frame)
    if module is None:
        return name
    spec = sys.modules[module].__spec__
    known = _decorators.get(module)
    if known is None or known[0] is not spec:
        known = _decorators[module] = spec, Counter()
    known[1][name, number] += 1
    nth = known[1][name, number]
    return ":".join(filter(None, (name, module if module != home else "", str(nth) if nth > 1 else "")))


def _importing(frame: FrameType | None) -> str | None:
    """Return the module whose import has led to this frame; `None` = a function of Django has, as for a request."""
    called_in = frame and frame.f_globals
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("django."):
        if frame.f_code.co_name == "<module>":
            name = str(frame.f_globals.get("__name__"))
            is_module = getattr(sys.modules.get(name), "__dict__", None) is frame.f_globals
            # A program's own module runs as long as the program.
            return name if is_module and (name != "__main__" or called_in is frame.f_globals) else None
        frame = frame.f_back
    return None


def _within_api_view(cls: Any) -> int:
    """Return how many decorators the function has that `@api_view` made this class for: they have its name, too."""
    handlers = [getattr(cls, method, None) for method in cls.http_method_names]
    return max((getattr(each, "ratelimits", 0) for handler in handlers for each in _wrapped_by(handler)), default=0)


def _wrapped_by(function: Any) -> Iterator[Any]:
    """Yield what is in the closure of a function, such as the function that `@api_view` has made a handler of."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # the cell is still empty
            yield cell.cell_contents


def limits_of(view: Any) -> list[RatelimitArguments]:
    """Return the arguments of a view's decorators, the outermost first; with `@api_view`, those of the function."""
    for each in (view, *_wrapped_by(view)):
        if callable(each) and (limits := getattr(each, "ratelimit_limits", ())):
            return list(reversed(limits))
    return []


def limits_for(view: Any, method: str) -> list[RatelimitArguments]:
    """Return the arguments of the decorators that limit requests of this method: of the view, and in its class."""
    cls, handler = class_of(view), method.lower()
    if handler == "head" and not hasattr(cls, "head"):
        handler = "get"
    handler = (getattr(view, "actions", None) or {}).get(handler, handler)
    parts = (view, getattr(cls, "check_throttles", None), getattr(cls, handler, None))
    return [each for part in parts for each in limits_of(part) if not each.methods or method in each.methods]


_sets: Any
for _sets in (ratelimit, get_usage, is_ratelimited, aget_usage, ais_ratelimited):
    _sets.ALL, _sets.UNSAFE = ALL, UNSAFE


def _wrapper(view: Callable[..., Any], arguments: RatelimitArguments) -> Callable[..., Any]:
    @wraps(view)
    def limited_view(*args: Any, **kwargs: Any) -> Any:
        request = _request_of(args, kwargs)
        call = arguments.resolve(request, view)
        if arguments.cost_after is None or call is NO_CALL:
            decision = NOTHING_TO_DECIDE
            if call is not NO_CALL:
                decision = limiter.check(request, **call.limiter_kwargs(request))
            _apply_decision(request, call, decision, arguments.block)
            if decision.delay:
                io.sleep(decision.delay)
            return view(*args, **kwargs)
        with ExitStack() as stack:
            charge = _charge(request, call)
            with _rejecting(request, call, arguments):
                stack.enter_context(charge)
            response = view(*args, **kwargs)
            _set_cost(charge, arguments, response)
        return response

    return limited_view


def _awrapper(view: Callable[..., Any], arguments: RatelimitArguments) -> Callable[..., Any]:
    @wraps(view)
    async def limited_view(*args: Any, **kwargs: Any) -> Any:
        request = _request_of(args, kwargs)
        call = await io.LOOP.look_up(arguments.resolve, request, view)
        if arguments.cost_after is None or call is NO_CALL:
            decision = NOTHING_TO_DECIDE
            if call is not NO_CALL:
                decision = await limiter.acheck(request, **call.limiter_kwargs(request))
            _apply_decision(request, call, decision, arguments.block)
            if decision.delay:
                await io.asleep(decision.delay)
            return await view(*args, **kwargs)
        async with AsyncExitStack() as stack:
            charge = _charge(request, call)
            with _rejecting(request, call, arguments):
                await stack.enter_async_context(charge)
            response = await view(*args, **kwargs)
            _set_cost(charge, arguments, response)
        return response

    return limited_view


def _charge(request: Any, call: LimiterCall) -> MeteredCost:
    options, usual_cost = call.limiter_kwargs(request), call.extra.rule.cost if call.extra else 1
    return limiter.charge(request, **(options | {"cost": options["cost"] or usual_cost}))


def _set_cost(charge: MeteredCost, arguments: RatelimitArguments, response: Any) -> None:
    """Set the cost that `cost_after` returns. If that fails, the usual cost stays charged: the work is done."""
    try:
        charge.cost = arguments.cost_after(response)  # type: ignore[misc]
    except Exception as error:  # the project's own code
        text = "cost_after of %s failed; %s units are charged: %s"
        logger.error(text, arguments.name, charge.cost, told_safely(error))


@contextmanager
def _rejecting(request: Any, call: LimiterCall, arguments: RatelimitArguments) -> Iterator[None]:
    """Handle a rejection by `limiter.charge` like any other decision."""
    with suppress(LimitExceeded):
        yield
    _apply_decision(request, call, django_request(request).ratelimit, arguments.block)  # type: ignore[attr-defined]


def _apply_decision(request: Any, call: LimiterCall, decision: Decision, block: bool) -> None:
    """Set `request.limited`, and raise if the request is rejected and `block` is set."""
    limited = not decision.allowed
    if not (limited or block):  # its rate is in shadow
        result = call.result(decision)
        limited = result is not None and not result.passes
    http: Any = django_request(request)
    for each in (request,) if request is http else (request, http):
        each.limited = limited or getattr(each, "limited", False)
    if limited and (block or decision.access is not None):
        _reject(request, decision)


def _reject(request: Any, decision: Decision) -> None:
    exception = django_setting("RATELIMIT_EXCEPTION_CLASS")
    if exception is not None:
        raise (import_string(exception) if isinstance(exception, str) else exception)
    view = (getattr(request, "parser_context", None) or {}).get("view")
    if view is None or decision.access is not None:
        func = getattr(django_request(request).resolver_match, "func", None)
        is_ninjas = getattr(func, "__module__", None) == _NINJAS_VIEWS
        raise _ninja_class(sys.modules["ninja.errors"].HttpError)(decision) if is_ninjas else Ratelimited(decision)
    # DRF answers 403 to Ratelimited.
    if decision.unavailable:
        raise LimitExceeded(decision)
    view.throttled(request, decision.rejection.seconds)


@cache
def _ninja_class(http_error: Any) -> type[Ratelimited]:
    """Return `Ratelimited` as one of django-ninja's own exceptions, with the status and the text of the rejection.

    django-ninja answers other exceptions with an error 500, with a traceback while DEBUG is on.
    """

    def __init__(self: Any, decision: Decision) -> None:
        http_error.__init__(self, decision.rejection.status, words_of(decision).detail)
        self.decision = decision

    return type("Ratelimited", (Ratelimited, http_error), {"__init__": __init__, "__str__": http_error.__str__})


def _is_async(view: Callable[..., Any]) -> bool:
    if iscoroutinefunction(view):
        return True
    owner = getattr(view.func if isinstance(view, partial) else view, "__self__", None)
    return getattr(view, "__name__", "") == "dispatch" and bool(getattr(owner, "view_is_async", False))


def _request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the request among the arguments of a function or a method."""
    for candidate in (*args[:2], kwargs.get("request")):
        if hasattr(candidate, "META"):
            return candidate
    raise ImproperlyConfigured("@ratelimit: the first argument of a view is its request.")
