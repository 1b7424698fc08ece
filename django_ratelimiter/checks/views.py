"""Checks of views and paths: that rules apply to them, that addresses and rates are valid, and of gateways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.urls import ResolverMatch, get_resolver
from django.utils import translation

from ..conf import django_setting, settings
from ..conf.values import is_attribute_path
from ..decorators import limits_of
from ..middleware import ASKED_BY_GATEWAYS, exempt_paths
from ..rules import routes
from ..rules.records import RuleRecord
from .common import SYMPTOMS, Found, are_trusted, check, import_or_none, is_subclass, rules_in_force, together

_THROTTLES: Final = "django_ratelimiter.throttling"
#: The end of the URL name of the list of rules, in any AdminSite.
_LIST_OF_RULES: Final = ":django_ratelimiter_rule_changelist"


@check(
    "W012",
    "These rules never apply in the middleware, because their paths are exempt: {}.",
    f"Set RATELIMITER['EXEMPT_PATHS'] to the paths that no rule applies to, without these rules'. See {SYMPTOMS}",
)
def check_exempt() -> Found:
    """Return the rules for exempt paths; "all" if every path is. Not those with a scope, which code may use."""
    exempt = _exempt()
    if "/" in exempt:  # a rule for every path, too, and every later one
        return [("all",)]
    return together(rule.slug for rule in rules_in_force() if not rule.scope and _path(rule).startswith(exempt))


@check(
    "W021",
    "The admin's pages of rules at {} are not exempt, so these rules may reject operators there: {}.",
    "Name the path of this admin in RATELIMITER['EXEMPT_PATHS'], which replaces the default paths.",
)
def check_admin() -> Found:
    """Return each admin whose pages of rules are not exempt, and the rules that may reject operators there."""
    exempt = _exempt()
    lists = [
        view for view in routes.views() if view.name.endswith(_LIST_OF_RULES) and not view.start.startswith(exempt)
    ]
    enforced = [rule for rule in rules_in_force() if rule.mode == "enforce"] if lists else []
    found: dict[str, tuple[str, dict[str, None]]] = {}  # each admin once, in any language
    for view in lists:
        _, slugs = found.setdefault(view.name, (view.start, {}))
        slugs |= dict.fromkeys(rule.slug for rule in enforced if view.may_match(rule))
    return [(path, ", ".join(slugs)) for path, slugs in found.values() if slugs]


@check(
    "W019",
    "Rule {} applies to no view: none has the {} {!r}.{}",
    "Correct the rule in the admin. Views are named as in reverse(), with their namespace; a route is all of it in "
    f"urls.py. See {SYMPTOMS}",
)
def check_targets() -> Found:
    """Return the rules for a view name or route that does not exist, or for a scope that looks misspelt."""
    for rule in rules_in_force():
        for found in routes.unknown_names(rule):
            if found.close or found.field != "scope":  # any code may use a scope that no view has
                close = f" Did you mean {found.close!r}?" if found.close else ""
                yield rule.slug, found.field.replace("_", " "), found.name, close


@check(
    "W004",
    "{} authenticates its user after the middleware has decided, so these rules by user or customer never apply: {}.",
    "Add django_ratelimiter.throttling.RuleThrottle to its throttle_classes, or to DEFAULT_THROTTLE_CLASSES.",
)
def check_views() -> Found:
    """Return the views of DRF to which rules by user never apply; a prefix inside a captured part is ignored."""
    by_user = [path for path in settings.CUSTOMER if not is_attribute_path(path, ("api_key",))]
    names = {"user", "customer"} if by_user else {"user"}
    rules = [rule for rule in rules_in_force() if names & {*rule.partition_by}]
    unmet, late = dict[Any, set[str]](), dict[routes.View, Any]()
    for match in _all_views() if rules else ():
        if _knows_user_too_late(match.func):
            late[routes.view_of(match)] = routes.class_of(match.func)
    for rule in rules:
        for view in filter(late.get, routes.views_of(rule)):
            if rule.path_kind != "prefix" or view.start.startswith(rule.path):
                unmet.setdefault(late[view], set()).add(rule.slug)
    return [(routes.name_of_class(cls), ", ".join(sorted(slugs))) for cls, slugs in unmet.items()]


@check(
    "W011",
    "Without REST_FRAMEWORK['NUM_PROXIES'], callers can choose the address that these throttles count by: {}.",
    "Set it to the number of your proxies, 0 if there are none, or name them in RATELIMITER['TRUSTED_PROXIES'].",
)
def check_addresses() -> Found:
    """Return the throttles that trust the address which a caller sends, as DRF does without NUM_PROXIES."""
    if are_trusted(settings.TRUSTED_PROXIES) or (django_setting("REST_FRAMEWORK") or {}).get("NUM_PROXIES") is not None:
        return []
    believing = {
        f"{throttle.__module__}.{throttle.__qualname__}"
        for match in _all_views()
        for throttle in routes.chosen_classes(match.func, "throttle_classes")
        if getattr(getattr(throttle, "get_ident", None), "__module__", "") == _THROTTLES
    }
    return together(sorted(believing))


@check("E009", "{}", "Correct the rate in REST_FRAMEWORK['DEFAULT_THROTTLE_RATES'], or in the class.")
def check_rates() -> Found:
    """Return the errors of rates of our throttles, with which each request to their views would fail."""
    faults = {_fault_of(throttle, scope) for throttle, scope in _throttles_with_rates()}
    return [(fault,) for fault in sorted(faults - {""})]


@check(
    "E010",
    "RATELIMITER['TRUSTED_PROXIES'] trusts nobody, so each gateway that asks {} gets a 403, and rejects every request.",
    'Name the networks of your gateways, such as ["10.0.0.0/8"], or "unix" for a Unix socket.',
)
def check_gateways() -> Found:
    """Return the paths of views for gateways if no caller can use them."""
    return [] if are_trusted(settings.TRUSTED_PROXIES) else together(_asked_by_gateways())


@check(
    "W022",
    "RATELIMITER['TRUSTED_PROXIES'] is a number, so every caller that can reach {} is trusted there.",
    'Name the networks of your gateways instead, such as ["10.0.0.0/8"], or "unix" for a Unix socket.',
)
def check_open_gateways() -> Found:
    """Return the paths of views for gateways if every caller that reaches this server can use them."""
    return together(_asked_by_gateways()) if settings.TRUSTED_PROXIES.hops else []


@check(
    "W026",
    "These views have `cost_after` without `cost`: all requests that come at once are allowed, whatever they cost: {}.",
    "Pass what a request usually costs as `cost`, even if that is 1: it is charged before the view begins.",
)
def check_estimates() -> Found:
    """Return the paths of views whose cost is charged after the response, and only one unit before."""
    late = {
        f"/{match.route}"
        for match in _all_views()
        for part in routes.parts_of(match.func)
        for limit in limits_of(part)
        if limit.cost_after is not None and limit.cost is None
    }
    return together(sorted(late))


def _all_views() -> Iterator[ResolverMatch]:
    """Yield the views of ROOT_URLCONF; none if it is not set."""
    return routes.all_views(get_resolver()) if django_setting("ROOT_URLCONF") else iter(())


def _exempt() -> tuple[str, ...]:
    """Return the prefixes of the exempt paths, in all languages of the site; none without ROOT_URLCONF."""
    if not django_setting("ROOT_URLCONF"):
        return ()
    found = dict.fromkeys(exempt_paths(None))
    if routes.is_translated(django_setting("ROOT_URLCONF")):
        for language, _ in django_setting("LANGUAGES"):
            with translation.override(language):
                found |= dict.fromkeys(exempt_paths(None))
    return tuple(found)


def _path(rule: RuleRecord) -> str:
    """Return the start of every path that the rule matches; empty = any."""
    return "/" + rule.path.removeprefix("^") if rule.path_kind == "route" else rule.path


def _asked_by_gateways() -> Iterator[str]:
    """Yield the paths of the views that decide for gateways."""
    return (f"/{match.route}" for match in _all_views() if hasattr(match.func, ASKED_BY_GATEWAYS))


def _throttles_with_rates() -> Iterator[tuple[Any, Any]]:
    """Yield the throttle classes in use that read a rate as ours do, each with the scope of its view, if it has one."""
    named = (django_setting("REST_FRAMEWORK") or {}).get("DEFAULT_THROTTLE_CLASSES") or ()
    found = [(import_or_none(each) if isinstance(each, str) else each, None) for each in named]
    for match in _all_views():
        found += [
            (throttle, routes.chosen_classes(match.func, getattr(throttle, "scope_attr", "")))
            for throttle in routes.chosen_classes(match.func, "throttle_classes")
        ]
    for throttle, scope in found:
        if is_subclass(throttle, f"{_THROTTLES}.SimpleRateThrottle"):
            # A subclass with its own way to get a rate may need a database for it.
            makers = {getattr(throttle, name).__module__ for name in ("__init__", "get_rate")}
            if makers <= {_THROTTLES, "rest_framework.throttling"}:
                yield throttle, scope


def _fault_of(throttle: Any, scope: Any) -> str:
    """Return the error in the rate of this throttle; "" = none."""
    try:
        asked = throttle()  # reads its rate, as for each request
        if scope:
            asked.scope = scope
            asked.parse_rate(asked.get_rate())
    except (ImproperlyConfigured, TypeError, ValueError) as error:
        return f"The rate of {throttle.__module__}.{throttle.__qualname__} fails at each request: {error}"
    return ""


def _knows_user_too_late(view: Any) -> bool:
    """Return whether a DRF view authenticates its user itself, and has no throttle of ours."""
    cls = getattr(view, "cls", None)
    if not hasattr(cls, "throttle_classes"):
        return False
    for method in ("get_throttles", "get_authenticators"):  # it chooses by request, so the result is not known
        if getattr(getattr(cls, method, None), "__module__", "") != "rest_framework.views":
            return False
    if any(getattr(throttle, "decides_rules", False) for throttle in routes.chosen_classes(view, "throttle_classes")):
        return False
    by_session = "rest_framework.authentication.SessionAuthentication"  # the same user as in the middleware
    return any(not is_subclass(each, by_session) for each in routes.chosen_classes(view, "authentication_classes"))
