"""The throttle classes of Django REST framework on the project's views."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from posixpath import commonpath
from typing import Any, Final, NamedTuple

from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from ...routes import chosen_classes, view_of
from .found import Found, limit_of, seconds_of

#: Modules with throttle classes that can be translated.
_UNDERSTOOD: Final = ("rest_framework.throttling", "django_ratelimiter.throttling")
#: Classes whose counters can be translated, base classes last.
_KNOWN: Final = ("AnonRateThrottle", "UserRateThrottle", "ScopedRateThrottle")
#: Methods with which a throttle identifies callers, and with which it decides.
_FINDS: Final = ("get_cache_key", "get_ident")
_DECIDES: Final = ("allow_request", "get_rate", "parse_rate", "throttle_success", "throttle_failure")
#: DRF's periods by their first letter; DRF ignores the rest.
_PERIODS: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day"}

ANONYMOUS: Final = "anonymous"


class _Use(NamedTuple):
    """A throttle class with a scope, its views, and other classes with the same scope."""

    throttle: Any
    scope: str
    views: list[ResolverMatch]
    others: list[str]

    @property
    def name(self) -> str:
        return _name_of(self.throttle)


def adopt_throttles(matches: Sequence[ResolverMatch], framework: dict[str, Any], found: Found) -> None:
    """Add a rule for each throttle class and scope of views. framework: the setting REST_FRAMEWORK."""
    views: dict[tuple[Any, str], list[ResolverMatch]] = defaultdict(list)
    classes: dict[str, set[str]] = defaultdict(set)
    for match in matches:
        for throttle, scope in _throttles_of(match, found):
            views[throttle, scope].append(match)
            classes[scope].add(_name_of(throttle))
    rates = framework.get("DEFAULT_THROTTLE_RATES") or {}
    for (throttle, scope), of_throttle in views.items():
        others = sorted(classes[scope] - {_name_of(throttle)}) if scope else []
        _adopt(_Use(throttle, scope, of_throttle, others), matches, rates, found)
    if views and framework.get("NUM_PROXIES") is None:
        text = _(
            "DRF takes addresses from X-Forwarded-For as it was sent; here RATELIMITER['TRUSTED_PROXIES'] decides."
        )
        found.differ(text)


def _throttles_of(match: ResolverMatch, found: Found) -> Iterator[tuple[Any, str]]:
    """Yield the throttle classes of a view, each with its scope."""
    throttles = [each for each in chosen_classes(match.func, "throttle_classes") if not _is_for_rules(each)]
    view = getattr(match.func, "cls", None)
    if view is not None and not _owner_of(view, "get_throttles").startswith("rest_framework."):
        text = _("View %(view)s: it chooses its throttles with its own code, get_throttles.")
        found.miss(text % {"view": match.view_name})
        return
    if len(throttles) > 1:
        found.differ(
            _("In DRF, each throttle of a view counts, even if another rejects; here rejections use no quota.")
        )
    for throttle in throttles:
        is_scoped = _kind_of(throttle) == "ScopedRateThrottle"
        scope = _scope_of_view(match.func) if is_scoped else getattr(throttle, "scope", None)
        if scope is not None or not is_scoped:  # without a scope, that class allows everything
            yield throttle, scope or ""


def _adopt(use: _Use, matches: Sequence[ResolverMatch], rates: dict[str, Any], found: Found) -> None:
    throttle, scope = use.throttle, use.scope
    kind, why = _kind_of(throttle), _code_of(throttle)
    rate = getattr(throttle, "rate", None) or getattr(throttle, "THROTTLE_RATES", rates).get(scope, rates.get(scope))
    if rate is None and kind:
        return  # not a limit there
    parsed = seconds_of(rate)
    if why or parsed is None or not parsed[0]:
        names = ", ".join(sorted({match.view_name for match in use.views}))
        words = {"name": use.name, "reason": why or _("its rate %(rate)s") % {"rate": rate}, "views": names}
        found.miss(_("Throttle %(name)s: %(reason)s. Views: %(views)s.") % words)
        return
    tier = None
    rule: dict[str, Any] = {"mode": "shadow"}
    if kind == "AnonRateThrottle":
        tier = ANONYMOUS
        found.tiers.setdefault(tier, {"name": "Anonymous", "default_for": "anonymous"})
        rule["partition_by"] = ["ip"]
    else:
        rule |= {"partition_by": ["user"], "missing_partition": "ip"}
    limit, notes = limit_of(*parsed, "sliding_window_log", tier)
    rule["limits"] = [limit]
    notes = [*_differences(use, rate), *notes]
    label = scope or throttle.__name__
    prefix = "" if kind == "ScopedRateThrottle" else _prefix_of(use.views, matches)
    if kind == "ScopedRateThrottle":
        needs = _("Scopes apply only if the view has RuleThrottle of django_ratelimiter.throttling.")
        found.add(label, {**rule, "scope": scope}, [notes[0], needs, *notes[1:]])
    elif prefix:
        found.add(label, {**rule, "path": prefix, "path_kind": "prefix"}, notes)
    else:
        _add_by_view(label, rule, use, notes, found)


def _add_by_view(label: str, rule: dict[str, Any], use: _Use, notes: list[str], found: Found) -> None:
    names = sorted({match.view_name for match in use.views})
    apart = [_("There, all these views share one counter; here each has its own.")] if len(names) > 1 else []
    for view in names:
        found.add(f"{label} {view}", {**rule, "view_name": view}, [notes[0], *apart, *notes[1:]])


def _differences(use: _Use, rate: Any) -> Iterator[str]:
    """Yield the origin of the rule, and its differences."""
    yield _("From %(name)s, %(rate)s.") % {"name": use.name, "rate": rate}
    if use.others:
        text = _("There, it counts together with %(names)s, which has the same scope, %(scope)s.")
        yield text % {"names": ", ".join(use.others), "scope": use.scope}
    period = rate.partition("/")[2].strip().lower() if isinstance(rate, str) else ""
    read = _PERIODS.get(period[:1], "")
    if not read.startswith(period.removesuffix("s") or "s") and period not in ("sec", "hr"):
        text = _("DRF reads only the first letter of “%(period)s”: this is a rate per %(read)s.")
        yield text % {"period": period, "read": read}
    yield _("The rule knows users only if the view has RuleThrottle of django_ratelimiter.throttling.")


def _prefix_of(views: Sequence[ResolverMatch], matches: Sequence[ResolverMatch]) -> str:
    """Return a path prefix that only these views have; "" = there is none."""
    folders = [view_of(match).start.rpartition("/")[0] or "/" for match in views]
    prefix = commonpath(folders).rstrip("/") + "/"
    ours = {id(match) for match in views}
    others = any(view_of(match).may_have_path("prefix", prefix) for match in matches if id(match) not in ours)
    return "" if len(prefix) < 2 or others else prefix


def _name_of(throttle: Any) -> str:
    return f"{throttle.__module__}.{throttle.__qualname__}"


def _owner_of(cls: Any, method: str) -> str:
    """Return the module of the class that defines this method; "" = no class does."""
    owner = next((base for base in getattr(cls, "__mro__", ()) if method in vars(base)), None)
    return str(getattr(owner, "__module__", ""))


def _is_for_rules(throttle: Any) -> bool:
    """Return whether this is a class of this package without a rate of its own."""
    return getattr(throttle, "__module__", "") == _UNDERSTOOD[1] and not hasattr(throttle, "rate")


def _code_of(throttle: Any) -> str:
    """Return what the project's own code does in this class; "" = it has none."""
    if any(_owner_of(throttle, name) not in (*_UNDERSTOOD, "") for name in _DECIDES):
        return _("it decides with its own code")
    if not _kind_of(throttle) or any(_owner_of(throttle, name) not in (*_UNDERSTOOD, "") for name in _FINDS):
        return _("it finds its key with its own code")
    return ""


def _kind_of(throttle: Any) -> str:
    """Return the DRF class that this one behaves like; "" = none that can be translated."""
    return next((name for name in _KNOWN for base in getattr(throttle, "__mro__", ()) if base.__name__ == name), "")


def _scope_of_view(view: Any) -> str | None:
    chosen = getattr(view, "initkwargs", {}).get("throttle_scope")
    scope: str | None = chosen or getattr(getattr(view, "cls", None), "throttle_scope", None)
    return scope
