"""The throttle classes of Django REST framework, as its views have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from posixpath import commonpath
from typing import Any, Final

from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from ...routes import chosen_classes, view_of
from .found import Found, limit_of, seconds_of

_THROTTLING: Final = "rest_framework.throttling"
#: Classes whose counters are understood, those nearest to the root last.
_KNOWN: Final = ("AnonRateThrottle", "UserRateThrottle", "ScopedRateThrottle")

ANONYMOUS: Final = "anonymous"


def adopt_throttles(matches: Sequence[ResolverMatch], rates: dict[str, Any], found: Found) -> None:
    """Add a rule for each throttle class and scope that views have. rates: DEFAULT_THROTTLE_RATES."""
    views: dict[tuple[Any, str], list[ResolverMatch]] = defaultdict(list)
    for match in matches:
        for throttle in chosen_classes(match.func, "throttle_classes"):
            kind = _kind_of(throttle)
            scope = _scope_of_view(match.func) if kind == "ScopedRateThrottle" else getattr(throttle, "scope", None)
            if scope is not None or getattr(throttle, "rate", None):
                views[throttle, scope or ""].append(match)
    for (throttle, scope), of_throttle in views.items():
        _adopt(throttle, scope, of_throttle, matches, rates, found)


def _adopt(
    throttle: Any, scope: str, views: list[ResolverMatch], matches: Sequence[ResolverMatch], rates: Any, found: Found
) -> None:
    name, kind = f"{throttle.__module__}.{throttle.__qualname__}", _kind_of(throttle)
    names = ", ".join(sorted({match.view_name for match in views}))
    rate = getattr(throttle, "rate", None) or getattr(throttle, "THROTTLE_RATES", rates).get(scope, rates.get(scope))
    if rate is None:
        return
    parsed = seconds_of(rate)
    if not kind or parsed is None or not parsed[0]:
        reason = _("its rate %(rate)s") % {"rate": rate} if kind else _("it finds its key by code of its own")
        found.miss(
            _("Throttle %(name)s: %(reason)s. Views: %(views)s.") % {"name": name, "reason": reason, "views": names}
        )
        return
    rule: dict[str, Any] = {"mode": "shadow"}
    tier = None
    if kind == "AnonRateThrottle":
        tier = ANONYMOUS
        found.tiers.setdefault(tier, {"name": "Anonymous", "default_for": "anonymous"})
        rule["partition_by"] = ["ip"]
    else:
        rule |= {"partition_by": ["user"], "missing_partition": "ip"}
    limit, notes = limit_of(*parsed, "sliding_window_log", tier)
    if tier is None:
        notes.append(_("Users are known to it where the view has RuleThrottle of django_ratelimiter.throttling."))
    rule["limits"] = [limit]
    origin = _("From %(name)s, %(rate)s.") % {"name": name, "rate": rate}
    label = scope or throttle.__name__
    if kind == "ScopedRateThrottle":
        needs = _("Scopes apply where the view has RuleThrottle of django_ratelimiter.throttling.")
        found.add(label, {**rule, "scope": scope}, [origin, needs, *notes])
        return
    prefix = _prefix_of(views, matches)
    if prefix:
        found.add(label, {**rule, "path": prefix, "path_kind": "prefix"}, [origin, *notes])
        return
    apart = _("There, all these views share one counter; here each has its own.")
    for view in sorted({match.view_name for match in views}):
        shared = [apart] if len({match.view_name for match in views}) > 1 else []
        found.add(f"{label} {view}", {**rule, "view_name": view}, [origin, *shared, *notes])


def _prefix_of(views: Sequence[ResolverMatch], matches: Sequence[ResolverMatch]) -> str:
    """Return the prefix that the paths of these views have and those of no others; "" = there is none."""
    folders = [view_of(match).start.rpartition("/")[0] or "/" for match in views]
    prefix = commonpath(folders).rstrip("/") + "/"
    ours = {id(match) for match in views}
    others = any(view_of(match).may_have_path("prefix", prefix) for match in matches if id(match) not in ours)
    return "" if len(prefix) < 2 or others else prefix


def _kind_of(throttle: Any) -> str:
    """Return which class of the framework finds the keys of this one; "" = code of the project's own."""
    bases = getattr(throttle, "__mro__", ())
    owner = next((base for base in bases if "get_cache_key" in vars(base)), None)
    if getattr(owner, "__module__", "") not in (_THROTTLING, "django_ratelimiter.throttling"):
        return ""
    return next((name for name in _KNOWN for base in bases if base.__name__ == name), "")


def _scope_of_view(view: Any) -> str | None:
    chosen = getattr(view, "initkwargs", {}).get("throttle_scope")
    scope: str | None = chosen or getattr(getattr(view, "cls", None), "throttle_scope", None)
    return scope
