"""Other packages' decorators on a view: their arguments are read from the closures of the decorated functions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from inspect import isfunction
from typing import Any, Final, NamedTuple

from ...routes import class_of

DJANGO_RATELIMIT: Final = "django-ratelimit"
SMART_RATELIMIT: Final = "django-smart-ratelimit"

#: Modules of the decorators, with the names of their packages.
_MODULES: Final = {
    "django_ratelimit.decorators": DJANGO_RATELIMIT,
    "ratelimit.decorators": DJANGO_RATELIMIT,
    "django_smart_ratelimit.decorator": SMART_RATELIMIT,
}
_METHODS: Final = ("get", "post", "put", "patch", "delete", "head", "options")


class Use(NamedTuple):
    """One use of a decorator.

    methods: of the decorated method of a class; empty = all. function: the names of the decorated function, from which
    django-ratelimit makes the names of counters: the module, the class of the view if it has one, and its own.
    """

    package: str
    arguments: Mapping[str, Any]
    methods: tuple[str, ...]
    function: tuple[str, ...]

    @property
    def counter(self) -> Hashable:
        """Return a value that is equal for uses with a shared counter."""
        given = self.arguments
        key = str(given.get("key"))
        if self.package == SMART_RATELIMIT:
            return self.package, key
        return given.get("group") or self.function, key, str(given.get("rate")), str(given.get("method"))


class _Place(NamedTuple):
    """Where a decorator was found. methods: of a class; empty = all. cls: the name of that class; "" = no class."""

    methods: tuple[str, ...] = ()
    cls: str = ""


def uses_on(view: Any) -> Iterator[Use]:
    """Yield the decorator uses on a view: on the function, or on its class and the methods of that."""
    seen: set[int] = set()
    yield from _in_closures(view, _Place(), seen)
    cls = class_of(view)
    if cls is not None:
        yield from _in_closures(getattr(cls, "dispatch", None), _Place((), cls.__name__), seen)
        for method in _METHODS:
            yield from _in_closures(getattr(cls, method, None), _Place((method.upper(),), cls.__name__), seen)


def _in_closures(function: Any, place: _Place, seen: set[int], depth: int = 0) -> Iterator[Use]:
    """Follow closures: that of a decorated function contains the decorator's arguments and the next function."""
    if not isfunction(function) or id(function) in seen or depth > 20:
        return
    seen.add(id(function))
    captured = _captured(function)
    package = _MODULES.get(function.__globals__.get("__name__", ""))
    for arguments in _arguments(captured) if package else ():
        names = (function.__module__, place.cls, function.__qualname__)
        yield Use(package or "", arguments, place.methods, names)
    for value in captured.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            yield from _in_closures(each, place, seen, depth + 1)


def _arguments(captured: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the arguments of each limit. A decorator stores arguments that it has parsed under private names."""
    if isinstance(captured.get("checks"), list | tuple):
        yield from ({**captured, **check} for check in captured["checks"] if isinstance(check, Mapping))
    elif "key" in captured and not captured.keys().isdisjoint(("rate", "_rate")):
        yield {name.removeprefix("_"): value for name, value in captured.items()} | {**captured}


def _captured(function: Any) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
    return found
