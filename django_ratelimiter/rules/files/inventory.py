"""The URLs of a project, and what can be seen of their limits from outside of the code: throttles and decorators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from textwrap import wrap
from typing import Any, Final

from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from ..routes import chosen_classes, class_of, is_of_api_view

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

    urls: by what is seen; "" = nothing. count: of all URLs; unseen: of those with limits that cannot be seen, or none.
    """

    def __init__(self, matches: Iterable[ResolverMatch] = ()) -> None:
        self.urls: defaultdict[str, list[str]] = defaultdict(list)
        self.count = self.unseen = 0
        for match in matches:
            seen, hidden = list(dict.fromkeys(_seen(match))), list(dict.fromkeys(_hidden(match)))
            if hidden:
                seen.append(_("cannot be seen: %(names)s") % {"names": ", ".join(hidden)})
            is_admin = "admin" in match.namespaces or hasattr(match.func, "admin_site")
            url = _("Django's admin") if is_admin else f"{match.route or '/'} ({match.view_name})"
            urls = self.urls[", ".join(seen)]
            if url not in urls:
                urls.append(url)
                self.count += 1
                self.unseen += bool(hidden) or not seen

    def in_lines(self) -> Iterator[str]:
        """Yield lines for people, the URLs with limits first."""
        for what, urls in sorted(self.urls.items(), reverse=True):
            line = f"- {what or _('nothing can be seen')}: {', '.join(urls)}"
            yield from wrap(line, 110, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def throttles_of(match: ResolverMatch) -> Sequence[Any] | None:
    """Return the throttle classes of a view; `None` = its own code may choose others."""
    chosen = chosen_classes(match.func, "throttle_classes")
    return chosen if isinstance(chosen, list | tuple) and not own_throttling(match) else None


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
        for limit in getattr(layers[0], "ratelimit_limits", ()):
            given = limit.arguments
            yield (
                f'@ratelimit("{limit.scope}")' if limit.scope else f"@ratelimit(key={given.key!r}, rate={given.rate!r})"
            )
        yield from (home for home in map(_home, layers) if home.startswith(_LIMITERS))


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
