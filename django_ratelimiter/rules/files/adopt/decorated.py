"""The decorators of django-ratelimit and django-smart-ratelimit: their arguments are in the closures of the views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import isfunction
from typing import Any, Final, NamedTuple

from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from .found import Found, limit_of, seconds_of

#: Modules of the decorators, and the packages by which people know them.
_MODULES: Final = {
    "django_ratelimit.decorators": "django-ratelimit",
    "ratelimit.decorators": "django-ratelimit",
    "django_smart_ratelimit.decorator": "django-smart-ratelimit",
}
_METHODS: Final = ("get", "post", "put", "patch", "delete", "head", "options")
_SIMPLE_KEYS: Final[Mapping[str, dict[str, Any]]] = {
    "ip": {"partition_by": ["ip"]},
    "user": {"partition_by": ["user"], "missing_partition": "ip"},
    "user_or_ip": {"partition_by": ["user"], "missing_partition": "ip"},
}
_ALGORITHMS: Final = {
    "token_bucket": "token_bucket",
    "leaky_bucket": "leaky_bucket",
    "sliding_window": "sliding_window_log",
    "fixed_window": "fixed_window",
}


class _Use(NamedTuple):
    """One use of a decorator. methods: those of the method of a class that it decorates; empty = all."""

    package: str
    arguments: Mapping[str, Any]
    methods: tuple[str, ...]


def adopt_decorators(matches: Sequence[ResolverMatch], found: Found) -> None:
    """Add a rule for each use of a decorator on a view."""
    for match in matches:
        for use in _uses(match.func):
            _adopt(use, match.view_name, found)


def _adopt(use: _Use, view: str, found: Found) -> None:
    given, notes = use.arguments, [_("From the decorator of %(package)s.") % {"package": use.package}]
    key, rate, parsed = given.get("key"), given.get("rate"), seconds_of(given.get("rate"))
    counted = counted_by(key)
    for what, is_wrong in (("rate", parsed is None or not parsed[0]), ("key", counted is None)):
        if is_wrong:
            text = _("Decorator of %(package)s on %(view)s: its %(what)s, %(value)s, has no rule that does the same.")
            words = {"package": use.package, "view": view, "what": what, "value": repr(given.get(what))}
            found.miss(text % words)
            return
    quota, seconds = parsed  # type: ignore[misc]  # which is no `None` here
    algorithm = _ALGORITHMS.get(str(given.get("algorithm") or "fixed_window"), "fixed_window")
    limit, more = limit_of(quota, seconds, algorithm)
    if not given.get("block", True) or given.get("shadow"):
        notes.append(_("It rejects nothing there; a rule in shadow does the same."))
    if given.get("group"):
        notes.append(_("There, it counts together with all of the group %(group)s.") % {"group": given["group"]})
    notes += [
        _("Not translated: %(name)s.") % {"name": name}
        for name in ("skip_if", "adaptive", "response_callback", "allow_list", "deny_list", "algorithm_config")
        if given.get(name)
    ]
    cost = given.get("cost", 1)
    rule: dict[str, Any] = {"mode": "shadow", "view_name": view, **(counted or {})}
    if methods := _methods_of(given.get("method")) or use.methods:
        rule["methods"] = [*methods]
    if isinstance(cost, int) and cost > 1:
        rule["cost"] = cost
    found.add(view, rule | {"limits": [limit]}, [*notes, f"{rate}, {key}", *more])


def counted_by(key: Any) -> dict[str, Any] | None:
    """Return the fields of a rule that counts by this key of a decorator; `None` = there is no such rule."""
    if not isinstance(key, str):
        return None
    kind, _colon, name = key.partition(":")
    if kind == "header" and name:
        return {"partition_by": [f"header:{name}"], "missing_partition": "ip"}
    if kind == "post" and name:
        return {"partition_by": [f"field:{name}"], "missing_partition": "ip"}
    return _SIMPLE_KEYS.get(key)


def _methods_of(method: Any) -> list[str]:
    if not method or isinstance(method, str | list | tuple) is False:
        return []
    names = [method] if isinstance(method, str) else [*method]
    return [str(name).upper() for name in names if str(name).upper() != "ALL"]


def _uses(view: Any) -> Iterator[_Use]:
    """Yield the uses on a view: on the function, or on its class and the methods of that."""
    seen: set[int] = set()
    yield from _in_closures(view, (), seen)
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if cls is not None:
        yield from _in_closures(getattr(cls, "dispatch", None), (), seen)
        for method in _METHODS:
            yield from _in_closures(getattr(cls, method, None), (method.upper(),), seen)


def _in_closures(function: Any, methods: tuple[str, ...], seen: set[int], depth: int = 0) -> Iterator[_Use]:
    """Follow what a function was made of: a decorated one holds the decorator's arguments, and the next function."""
    if not isfunction(function) or id(function) in seen or depth > 20:
        return
    seen.add(id(function))
    captured = _captured(function)
    package = _MODULES.get(function.__globals__.get("__name__", ""))
    rate = next((name for name in ("rate", "_rate") if name in captured), "")
    if package and rate and "key" in captured:
        yield _Use(package, {**captured, "rate": captured[rate]}, methods)
    for value in captured.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            yield from _in_closures(each, methods, seen, depth + 1)


def _captured(function: Any) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing was put into it yet
            continue
    return found
