"""Checks of views: that rules by user apply to DRF's, that addresses and rates are valid, and of those for gateways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.urls import Resolver404, ResolverMatch, get_resolver, resolve

from ..conf import django_setting, settings
from ..decorators import limits_of
from ..middleware import ASKED_BY_GATEWAYS
from ..rules.records import Facts, RuleRecord
from ..rules.routes import all_views, chosen_classes, name_of_class, parts_of, view_of
from .common import Found, are_invalid, check, import_or_none, is_subclass, message, rules_in_force

_THROTTLES: Final = "django_ratelimiter.throttling"


@check
def check_views() -> Found:
    """W004: views of DRF to which rules by user never apply."""
    rules = [rule for rule in rules_in_force() if "user" in rule.partition_by]
    if not rules or not django_setting("ROOT_URLCONF"):
        return []
    unmet: dict[Any, set[str]] = {}
    for match in all_views(get_resolver()):
        view: Any = match.func
        if _knows_user_too_late(view):
            slugs = {rule.slug for rule in rules if _may_meet(rule, match)}
            if slugs:
                unmet.setdefault(view.cls, set()).update(slugs)
    return [
        message(
            "W004",
            f"{name_of_class(cls)} authenticates its user after the middleware has decided, "
            f"so these rules by user never apply to it: {', '.join(sorted(slugs))}.",
            "Add django_ratelimiter.throttling.RuleThrottle to its throttle_classes, "
            "or to DEFAULT_THROTTLE_CLASSES of REST_FRAMEWORK.",
        )
        for cls, slugs in unmet.items()
    ]


@check
def check_addresses() -> Found:
    """W011: throttles trust the address that a caller sends, as DRF does without NUM_PROXIES."""
    if are_invalid("TRUSTED_PROXIES") or not django_setting("ROOT_URLCONF"):
        return
    trusted, framework = settings.TRUSTED_PROXIES, django_setting("REST_FRAMEWORK") or {}
    if trusted.hops or trusted.networks or trusted.unix or framework.get("NUM_PROXIES") is not None:
        return
    believing = {
        f"{throttle.__module__}.{throttle.__qualname__}"
        for match in all_views(get_resolver())
        for throttle in chosen_classes(match.func, "throttle_classes")
        if getattr(getattr(throttle, "get_ident", None), "__module__", "") == _THROTTLES
    }
    if believing:
        yield message(
            "W011",
            f"REST_FRAMEWORK['NUM_PROXIES'] is not set, so callers can choose their address with X-Forwarded-For, and "
            f"get a new counter with each address: {', '.join(sorted(believing))}.",
            "Set it to the number of your proxies, 0 if there are none, or name them in "
            "RATELIMITER['TRUSTED_PROXIES'].",
        )


@check
def check_rates() -> Found:
    """E009: the rate of one of our throttles is invalid, so that each request to its views would fail."""
    faults = {_fault_of(throttle, scope) for throttle, scope in _throttles_with_rates()}
    return [
        message("E009", fault, "Correct the rate in REST_FRAMEWORK['DEFAULT_THROTTLE_RATES'], or in the class.")
        for fault in sorted(faults - {""})
    ]


@check
def check_gateways() -> Found:
    """E010: no caller can use these views. W022: every caller that reaches this server can."""
    if are_invalid("TRUSTED_PROXIES") or not django_setting("ROOT_URLCONF"):
        return
    trusted = settings.TRUSTED_PROXIES
    if not trusted.hops and (trusted.networks or trusted.unix):
        return
    routes = [match.route for match in all_views(get_resolver()) if hasattr(match.func, ASKED_BY_GATEWAYS)]
    shown = ", ".join(f"/{route}" for route in routes)
    if routes and trusted.hops:
        yield message(
            "W022",
            f"RATELIMITER['TRUSTED_PROXIES'] is a number, so every caller that can reach {shown} is trusted "
            "there: a caller could choose the path, the method and the address of the request to decide.",
            'Name the networks of your gateways instead, such as ["10.0.0.0/8"], or "unix" for a Unix socket.',
        )
    elif routes:
        yield message(
            "E010",
            f"RATELIMITER['TRUSTED_PROXIES'] trusts nobody, so each gateway that asks {shown} gets a 403, and rejects "
            "every request.",
            'Name the networks of your gateways, such as ["10.0.0.0/8"], or "unix" for a Unix socket.',
        )


@check
def check_estimates() -> Found:
    """W026: the cost of a view is charged after its response, and only one unit before."""
    late = {
        f"/{match.route}"
        for match in (all_views(get_resolver()) if django_setting("ROOT_URLCONF") else ())
        for part in parts_of(match.func)
        for limit in limits_of(part)
        if limit.cost_after is not None and limit.cost is None
    }
    if late:
        yield message(
            "W026",
            "These views charge their cost after the response, without an estimate. So while one unit is left for each "
            f"of them, all requests that come at once are allowed, whatever they cost: {', '.join(sorted(late))}.",
            "Pass what a request usually costs as `cost` to @ratelimit: it is charged first, and the difference after "
            "the response. If that is 1, pass 1.",
        )


def _throttles_with_rates() -> Iterator[tuple[Any, Any]]:
    """Yield the throttle classes in use that read a rate as ours do, each with the scope of its view, if it has one."""
    named = (django_setting("REST_FRAMEWORK") or {}).get("DEFAULT_THROTTLE_CLASSES") or ()
    found = [(import_or_none(each) if isinstance(each, str) else each, None) for each in named]
    for match in all_views(get_resolver()) if django_setting("ROOT_URLCONF") else ():
        found += [
            (throttle, chosen_classes(match.func, getattr(throttle, "scope_attr", "")))
            for throttle in chosen_classes(match.func, "throttle_classes")
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
    if any(getattr(throttle, "decides_rules", False) for throttle in chosen_classes(view, "throttle_classes")):
        return False
    by_session = "rest_framework.authentication.SessionAuthentication"  # the same user as in the middleware
    return any(not is_subclass(each, by_session) for each in chosen_classes(view, "authentication_classes"))


def _may_meet(rule: RuleRecord, match: ResolverMatch) -> bool:
    """Return whether the rule surely matches requests to this view; a prefix inside a captured part is ignored."""
    view: Any = match.func
    scopes = ("", *view_of(match).scopes)
    route = match.route or ""
    path = "/" + re.split(r"[<(\[\\$.*+?]", route.removeprefix("^"), maxsplit=1)[0]
    if rule.path_kind == "exact":
        if not _leads_to(rule.path, view):
            return False
        path = rule.path
    methods = rule.methods or ("GET",)
    asked = [Facts(method, path, route, match.view_name, scope) for method in methods for scope in scopes]
    return any(map(rule.matches, asked))


def _leads_to(path: str, view: Any) -> bool:
    try:
        return resolve(path).func is view
    except Resolver404:
        return False
