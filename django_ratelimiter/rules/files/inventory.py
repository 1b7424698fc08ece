"""The URLs of a project, and what can be seen of their limits from outside of the code: throttles and decorators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from textwrap import wrap
from typing import Any, Final

from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from ..routes import chosen_classes, class_of, is_of_api_view

#: Modules with DRF's throttle classes, and those of them that can be translated.
_MODULES: Final = ("rest_framework.throttling", "django_ratelimiter.throttling")
KINDS: Final = ("AnonRateThrottle", "UserRateThrottle", "ScopedRateThrottle")
#: What the body of a class may contain that is not code.
_DATA: Final = {"scope", "rate", "THROTTLE_RATES", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"}

#: Methods of DRF's views that choose or call throttles.
_CALLS_THROTTLES: Final = ("get_throttles", "check_throttles")
#: Modules of other limiters, as the beginnings of their names.
_LIMITERS: Final = ("django_ratelimit.", "ratelimit.", "django_smart_ratelimit.", "axes.", "defender.")
#: Modules whose decorators do not limit, and that name what they wrap.
_HARMLESS: Final = ("django.", "rest_framework.", "django_ratelimiter.", "asgiref.", "contextlib")
#: The function that Django's `method_decorator` puts in place of a method: module and name.
_METHOD_DECORATOR: Final = ("django.utils.decorators", "_wrapper")


class Inventory:
    """What can be seen of the limits of each URL.

    urls: by what is seen; "" = nothing. count: of all URLs, of which Django's admin is one; unseen: of those that have
    something that may limit and cannot be seen; bare: of those where nothing is seen.
    """

    def __init__(self, matches: Iterable[ResolverMatch] = ()) -> None:
        found: defaultdict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for match in matches:
            is_admin = "admin" in match.namespaces or hasattr(match.func, "admin_site")
            seen, hidden = found[_("Django's admin") if is_admin else f"{match.route or '/'} ({match.view_name})"]
            seen += _seen(match)
            hidden += (each for each in _hidden(match) if not is_admin or each != "method_decorator")  # Django's own
        self.urls: defaultdict[str, list[str]] = defaultdict(list)
        for url, (seen, hidden) in found.items():
            if hidden:
                seen.append(_("cannot be seen: %(names)s") % {"names": ", ".join(dict.fromkeys(hidden))})
            self.urls[", ".join(dict.fromkeys(seen))].append(url)
        self.count, self.bare = len(found), len(self.urls.get("", ()))
        self.unseen = sum(bool(hidden) for _seen_there, hidden in found.values())

    def in_lines(self) -> Iterator[str]:
        """Yield lines for people, the URLs with limits first."""
        for what, urls in sorted(self.urls.items(), reverse=True):
            line = f"- {what or _('nothing can be seen')}: {', '.join(urls)}"
            yield from wrap(line, 110, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def throttles_of(match: ResolverMatch) -> Sequence[Any] | None:
    """Return the throttle classes of a view that limit it; `None` = its own code may choose others."""
    chosen = chosen_classes(match.func, "throttle_classes")
    if not isinstance(chosen, list | tuple) or own_throttling(match):
        return None
    return [each for each in chosen if not (kind_of(each) and rate_of(each, scope_of(each, match)) is None)]


def kind_of(throttle: Any) -> str:
    """Return the DRF class that this one is, or to which it only adds a scope or a rate; "" = it has own code."""
    for base in throttle.__mro__:
        if base.__module__ in _MODULES:
            return base.__name__ if base.__name__ in KINDS else ""
        if any(name not in _DATA or hasattr(value, "__get__") for name, value in vars(base).items()):
            return ""
    return ""


def scope_of(throttle: Any, match: ResolverMatch) -> str | None:
    """Return the scope of a throttle class on a view."""
    if kind_of(throttle) != "ScopedRateThrottle":
        return getattr(throttle, "scope", None)
    chosen = getattr(match.func, "initkwargs", {}).get("throttle_scope")
    scope: str | None = chosen or getattr(class_of(match.func), "throttle_scope", None)
    return scope


def rate_of(throttle: Any, scope: str | None) -> Any:
    """Return the rate as it is written; `None` = DRF allows all requests, "" = there is none, which is an error."""
    is_scoped = kind_of(throttle) == "ScopedRateThrottle"
    if is_scoped and scope is None:
        return None
    rate = None if is_scoped else getattr(throttle, "rate", None)
    return rate or getattr(throttle, "THROTTLE_RATES", {}).get(scope, "")


def own_throttling(match: ResolverMatch) -> list[str]:
    """Return the methods of a DRF view that choose or call throttles and are not DRF's."""
    methods = {name: _layers(getattr(class_of(match.func), name, None)) for name in _CALLS_THROTTLES}
    return [name for name, layers in methods.items() if not all(_home(each).startswith(_HARMLESS) for each in layers)]


def name_of(throttle: Any) -> str:
    """Return module and name of a throttle class."""
    return f"{throttle.__module__}.{throttle.__qualname__}"


def _seen(match: ResolverMatch) -> Iterator[str]:
    yield from map(name_of, throttles_of(match) or ())
    for layers in _decorated(match):
        yield from (_in_code(limit.arguments) for limit in getattr(layers[0], "ratelimit_limits", ()))
        yield from (home for home in map(_home, layers) if home.startswith(_LIMITERS))


def _in_code(given: Any) -> str:
    """Return a decorator as it is written, with the names of functions."""
    written = [f'"{given.group}"'] if given.group else []
    for field in fields(given):
        value = getattr(given, field.name)
        if field.name in ("key", "rate", "method", "block") and value not in (None, field.default):
            name = getattr(value, "__qualname__", "<")
            shown = repr(value) if not callable(value) else _("a function") if "<" in name else name
            written.append(f"{field.name}={shown}")
    return f"@ratelimit({', '.join(written)})"


def _hidden(match: ResolverMatch) -> Iterator[str]:
    if throttles_of(match) is None:
        yield _("throttles chosen by its own code")
    if _home(match.func).startswith("ninja."):
        yield "django-ninja"
    for layers in _decorated(match):
        for layer in layers[:-1]:
            home = _home(layer)
            if (home, layer.__code__.co_name) == _METHOD_DECORATOR:
                if not hasattr(layer, "ratelimit_limits"):
                    yield "method_decorator"
            elif not home.startswith((*_HARMLESS, *_LIMITERS)):
                yield home


def _decorated(match: ResolverMatch) -> Iterator[list[Any]]:
    """Yield the functions that answer a URL, each with those that it wraps."""
    cls, actions = class_of(match.func), getattr(match.func, "actions", None)
    names = actions.values() if actions else getattr(cls, "http_method_names", ())
    methods = [getattr(cls, name, None) for name in ("dispatch", "check_throttles", *names)]
    if is_of_api_view(cls):  # its function is in the closures of its methods
        methods += [cell.cell_contents for each in methods for cell in getattr(each, "__closure__", None) or ()]
    yield from filter(None, map(_layers, [match.func, *methods]))


def _layers(function: Any) -> list[Any]:
    """Return a function and those that it wraps, as far as it names them."""
    found = []
    while function is not None:
        while isinstance(function, partial):
            function = function.func
        if not hasattr(function, "__globals__"):  # an instance that can be called
            function = getattr(type(function), "__call__", None)  # noqa: B004
            if not hasattr(function, "__globals__"):
                break
        found.append(function)
        function = getattr(function, "__wrapped__", None)
    return found


def _home(function: Any) -> str:
    """Return the module in which a function is written, which a decorator does not change."""
    return str(getattr(function, "__globals__", {}).get("__name__", ""))
