"""The decorators of django-ratelimit and django-smart-ratelimit on views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from ....conf import django_setting
from .closures import DJANGO_RATELIMIT, SMART_RATELIMIT, Use, uses_on
from .found import Found, limit_of, seconds_of

_SIMPLE_KEYS: Final[Mapping[str, dict[str, Any]]] = {
    "ip": {"partition_by": ["ip"]},
    "user": {"partition_by": ["user"], "missing_partition": "ip"},
    "user_or_ip": {"partition_by": ["user"], "missing_partition": "ip"},
}
#: Algorithms of django-smart-ratelimit. Its leaky bucket rejects, as our `gcra` does; our `leaky_bucket` delays.
_ALGORITHMS: Final = {
    "token_bucket": "token_bucket",
    "leaky_bucket": "gcra",
    "sliding_window": "sliding_window_log",
    "fixed_window": "fixed_window",
}
#: Arguments without an equivalent field of a rule.
_NOT_TRANSLATED: Final = (
    "skip_if",
    "adaptive",
    "response_callback",
    "allow_list",
    "deny_list",
    "algorithm_config",
)
#: Settings of django-ratelimit for the client's address.
_ADDRESS_SETTINGS: Final = ("RATELIMIT_IP_META_KEY", "RATELIMIT_IPV4_MASK", "RATELIMIT_IPV6_MASK")


def adopt_decorators(matches: Sequence[ResolverMatch], found: Found) -> None:
    """Add a rule for each use of a decorator on a view."""
    views: dict[Hashable, set[str]] = defaultdict(set)
    by_view = [(match.view_name, list(uses_on(match.func))) for match in matches]
    for view, uses in by_view:
        for use in uses:
            views[use.counter].add(view)
    for view, uses in by_view:
        for use in uses:
            _adopt(use, view, found, [*_differences(use, uses, sorted(views[use.counter] - {view}))])
    if any(use.package == DJANGO_RATELIMIT for _view, uses in by_view for use in uses):
        found.differ(
            _("django-ratelimit begins the windows of each caller at a different moment; here they begin by the clock.")
        )
        for name in _ADDRESS_SETTINGS:
            if django_setting(name):
                found.miss(
                    _("%(name)s. See RATELIMITER['TRUSTED_PROXIES'] and RATELIMITER['IPV6_PREFIX'].") % {"name": name}
                )


def _adopt(use: Use, view: str, found: Found, differences: Sequence[str]) -> None:
    given = use.arguments
    key, rate = given.get("key"), given.get("rate")
    if rate is None and use.package == SMART_RATELIMIT:
        rate = django_setting("RATELIMIT_DEFAULT_LIMIT", "100/m")
    if rate is None:
        return  # not a limit there
    parsed, counted = seconds_of(rate), counted_by(key)
    for what, value, is_wrong in (("rate", rate, parsed is None or not parsed[0]), ("key", key, counted is None)):
        if is_wrong:
            text = _("Decorator of %(package)s on %(view)s: its %(what)s, %(value)s, has no rule that does the same.")
            found.miss(text % {"package": use.package, "view": view, "what": what, "value": _shown(value)})
            return
    quota, seconds = parsed  # type: ignore[misc]  # not `None` here
    limit, more = limit_of(quota, seconds, _algorithm_of(use))
    rule: dict[str, Any] = {"mode": "shadow", "view_name": view, **(counted or {})}
    if methods := _methods_of(given.get("method")) or use.methods:
        rule["methods"] = [*methods]
    if isinstance(given.get("cost"), int) and given["cost"] > 1:
        rule["cost"] = given["cost"]
    if use.package == SMART_RATELIMIT and _algorithm_of(use) == "sliding_window_log":
        rule["count_refusals"] = True
    origin = _("From the decorator of %(package)s.") % {"package": use.package}
    found.add(view, rule | {"limits": [limit]}, [origin, *differences, f"{rate}, {key}", *more])


def _differences(use: Use, uses: Sequence[Use], others: Sequence[str]) -> Iterator[str]:
    """Yield the differences between this use and its rule. others: views whose uses share its counter."""
    given, key = use.arguments, str(use.arguments.get("key"))
    if not given.get("block", True) or given.get("shadow"):
        yield _("It rejects nothing there; a rule in shadow does the same.")
    if given.get("group"):
        yield _("There, it counts together with all of the group %(group)s.") % {"group": given["group"]}
    elif others:
        text = _("There, it counts together with that of %(views)s; here each has its own counter.")
        yield text % {"views": ", ".join(others)}
    if key.startswith(("header:", "post:")) or (key == "user" and use.package == DJANGO_RATELIMIT):
        yield _("There, requests without such a value share one counter; here they are counted by address.")
    methods = _methods_of(given.get("method"))
    if "GET" in methods and "HEAD" not in methods:
        yield _("Here, GET includes HEAD.")
    if len(uses) > 1:
        yield _("There, a request that another decorator of the view rejects may count; here it uses no quota.")
    for name in _NOT_TRANSLATED:
        if given.get(name):
            yield _("Not translated: %(name)s.") % {"name": name}
    if callable(given.get("cost")):
        yield _("Not translated: %(name)s.") % {"name": "cost"}


def smart_algorithm() -> str:
    """Return the default algorithm of django-smart-ratelimit in this project."""
    return _ALGORITHMS.get(django_setting("RATELIMIT_ALGORITHM", "sliding_window"), "sliding_window_log")


def counted_by(key: Any) -> dict[str, Any] | None:
    """Return the fields of a rule for this `key` of a decorator; `None` = there is no equivalent."""
    if not isinstance(key, str):
        return None
    kind, _colon, name = key.partition(":")
    if kind == "header" and name:
        return {"partition_by": [f"header:{name}"], "missing_partition": "ip"}
    if kind == "post" and name:
        return {"partition_by": [f"field:{name}"], "missing_partition": "ip"}
    if kind in ("user", "ip"):  # "user:{user.id}" is by user in django-smart-ratelimit, and an error in the other
        return _SIMPLE_KEYS[kind]
    return _SIMPLE_KEYS.get(key)


def _algorithm_of(use: Use) -> str:
    if use.package == DJANGO_RATELIMIT:
        return "fixed_window"
    return _ALGORITHMS.get(str(use.arguments.get("algorithm")), "") or smart_algorithm()


def _methods_of(method: Any) -> list[str]:
    """Return the methods of a decorator; empty = all. (None,) is django-ratelimit's value for all."""
    names = [method] if isinstance(method, str) else method if isinstance(method, list | tuple) else ()
    return [str(name).upper() for name in names if name and str(name).upper() != "ALL"]


def _shown(value: Any) -> str:
    """Return an argument for a comment: a function by its name, so that each run writes the same file."""
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return repr(value)
