"""What code asks the limiter for: by its decorators and throttles, which can be read, or in the body of a function."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from django.urls import get_resolver
from django.utils.module_loading import import_string
from django.views import View

from ..conf import django_setting
from ..decorators import limits_for
from ..middleware import decides_later
from ..rules.routes import all_views, chosen_classes, class_of, throttle_scope

_OURS: Final = "django_ratelimiter"

#: The modules of ours that decide requests.
_ASKING: Final = tuple(f"{_OURS}.{name}" for name in ("limiter", "decorators", "throttling", "gateway"))

_FRAMEWORKS: Final = ("django", "rest_framework")

#: The methods of a class that answer a request, whose decorators are read.
_HANDLERS: Final = frozenset({*View.http_method_names, "dispatch", "check_throttles"})

#: Maximum number of functions and classes that are looked into for one view. If it refers to more, it may ask.
_MAX_LOOKED_INTO: Final = 3_000


class Asked(NamedTuple):
    """The scope and the units that code asks for in one call of the limiter; `None` = none, or each rule's own.

    is_computed: the units differ from request to request.
    """

    scope: str | None = None
    cost: int | None = None
    is_computed: bool = False


def asked_by(view: Any, method: str) -> list[Asked]:
    """Return what the decorators and the throttles of a view ask for in a request of this method."""
    view, found = _bare(view), []
    for each in limits_for(view, method):
        if each.scope:
            is_computed = callable(each.cost) or each.cost_after is not None
            found.append(Asked(each.scope, None if is_computed else each.cost, is_computed))  # type: ignore[arg-type]
    if decides_later(view):
        scope = throttle_scope(view)
        found.append(Asked(scope if isinstance(scope, str) else None))
    return found


def costs_of_scope(scope: str) -> tuple[set[int | None], list[str]]:
    """Return the fixed costs of requests to views that ask for this scope, and the views that compute theirs."""
    fixed, computed = set[int | None](), list[str]()
    for view in _views() if scope else ():
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            for each in asked_by(view, method):
                if each.scope == scope and each.is_computed:
                    computed.append(_name(view))
                elif each.scope == scope:
                    fixed.add(each.cost)
    return fixed, [*dict.fromkeys(computed)]


def asking_in_code() -> list[str]:
    """Return the views and the middleware whose code may call the limiter for any scope, as a log does not show."""
    middleware = [import_string(name) for name in django_setting("MIDDLEWARE", ()) if not name.startswith(f"{_OURS}.")]
    return [*dict.fromkeys(_name(each) for each in [*_views(), *middleware] if _may_ask(each))]


def _views() -> Iterator[Any]:
    if django_setting("ROOT_URLCONF"):
        yield from (_bare(match.func) for match in all_views(get_resolver(django_setting("ROOT_URLCONF"))))


def _bare(view: Any) -> Any:
    """Return what a `partial` calls, or the view itself."""
    return _bare(view.func) if isinstance(view, partial) else view


def _name(view: Any) -> str:
    made_of = class_of(view) or view
    return f"{made_of.__module__}.{getattr(made_of, '__qualname__', type(made_of).__qualname__)}"


def _may_ask(view: Any) -> bool:
    """Return whether code that is reached from here names the limiter, a decorator of ours or a throttle."""
    throttles = [each for each in chosen_classes(view, "throttle_classes") if getattr(each, "decides_rules", False)]
    scope, made_of = throttle_scope(view), class_of(view)
    if any(_top(each) != _OURS for each in throttles) or not isinstance(scope, str | None):
        return True
    home, seen = _top(made_of or view), set[int]()
    handlers = _HANDLERS | {*(getattr(view, "actions", None) or {}).values()}
    waiting = [(each, True) for each in (view, made_of, type(view))]
    while home not in _FRAMEWORKS and waiting and len(seen) < _MAX_LOOKED_INTO:
        each, is_part = waiting.pop()
        if not is_part and _asks(each):
            return True
        if id(each) not in seen and isinstance(each, FunctionType | type | partial | property):
            seen.add(id(each))
            waiting += _reached_from(each, home, handlers)
    return bool(waiting) and home not in _FRAMEWORKS


def _reached_from(each: Any, home: str, handlers: Collection[str]) -> Iterator[tuple[Any, bool]]:
    """Yield what a function or class refers to, if it is of the package `home`, and whether it is a part of the view.

    The decorators of a part are read by `asked_by`; of anything else, a request does not show whether it is called.
    """
    if isinstance(each, type):
        for name, value in [pair for cls in each.__mro__ if _top(cls) == home for pair in vars(cls).items()]:
            yield getattr(value, "__func__", value), name in handlers
    elif isinstance(each, partial | property):
        yield getattr(each, "func", None) or getattr(each, "fget", None), True
    else:
        is_own = each.__globals__.get("__name__", "").partition(".")[0] == home
        yield getattr(each, "__wrapped__", None), True
        for name in _names_in(each.__code__) if is_own else ():
            yield each.__globals__.get(name, name), False  # a name that is none is of an attribute or an import
        for cell in each.__closure__ or () if is_own or not hasattr(each, "__wrapped__") else ():
            with suppress(ValueError):  # it is still empty
                yield cell.cell_contents, not isinstance(cell.cell_contents, ModuleType)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _asks(found: Any) -> bool:
    """Return whether this is a part of ours that decides requests, or decorated by one."""
    if isinstance(found, str | ModuleType):
        return getattr(found, "__name__", found).partition(".")[0] == _OURS
    if hasattr(found, "ratelimit_limits"):
        return True
    home = found.__globals__.get("__name__", "") if isinstance(found, FunctionType) else ""
    if isinstance(found, type) and not issubclass(found, Exception):
        home = found.__module__
    return home.startswith(_ASKING)


def _top(found: Any) -> str:
    return (getattr(found, "__module__", None) or "").partition(".")[0]
