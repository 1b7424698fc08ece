"""The arguments of `@ratelimit`, and the limiter call made from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from http import HTTPMethod
from inspect import iscoroutine
from ipaddress import ip_network
from typing import Any, Final, NamedTuple

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.utils.module_loading import import_string

from .. import ALL
from ..conf import django_setting, has_identity
from ..databases import spelled
from ..decision import NOTHING_TO_DECIDE, Decision, Result, without
from ..engine.limits import known_algorithm, whole_units
from ..identity import Identity, identify
from ..limiter.charges import InlineRule
from ..rules import inline
from ..rules.records import FAILURE_POLICIES, RuleRecord
from ..rules.routes import class_of, name_of_class

Methods = str | Sequence[str | None]
Key = str | Callable[[str, Any], Any]
Rate = str | tuple[int, float] | Callable[[str, Any], Any] | None
Cost = int | Callable[[Any], int | None] | None
#: Keys that are not looked up as identities: the caller's address by the settings of django-ratelimit.
_CALLER_KEYS: Final = ("user", "user_or_ip", "ip")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
#: The module in which Django's `method_decorator` applies a decorator to a function that is not a view.
STAND_INS: Final = "django.utils.decorators"
_METHODS: Final = frozenset(HTTPMethod)
#: The settings with which django-ratelimit finds a caller's address.
_ADDRESS_SETTINGS: Final = ("RATELIMIT_IP_META_KEY", "RATELIMIT_IPV4_MASK", "RATELIMIT_IPV6_MASK")


class LimiterCall(NamedTuple):
    """The arguments of the limiter for one call of a view."""

    scope: str | None = None
    extra: InlineRule | None = None
    cost: int | None = None

    def limiter_kwargs(self, request: Any) -> dict[str, Any]:
        """Return the arguments of the limiter. A rate counts each call, even several calls of a view in one request."""
        scope, extra, cost = self
        if extra is None:
            return {"scope": scope, "cost": cost}
        http = django_request(request)
        earlier: Decision = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
        if earlier is not NOTHING_TO_DECIDE and earlier.allowed and extra.rule.slug in earlier.slugs:
            http.ratelimit = without(earlier, {extra.rule.slug})  # type: ignore[attr-defined]
        # A rule with a quota of 0 rejects by its cost.
        return {"extra": (extra,), "cost": cost if extra.rule.cost == 1 else None}

    def result(self, decision: Decision) -> Result | None:
        """Return the result of the rate in a decision; `None` if it has none, or if there is no rate."""
        slug = self.extra and self.extra.rule.slug
        return next((result for result in decision.results if result.rule.slug == slug), None)


#: Do not call the limiter.
NO_CALL: Final = LimiterCall()


@dataclass(frozen=True, eq=False)
class RatelimitArguments:
    """The arguments of one `@ratelimit`.

    name: of the limited view; empty = find it out. number: the position of this decorator among several of one view,
    counted from the view; 0 = this is no decorator.
    """

    group: str | None
    key: Key | None
    rate: Rate
    method: Methods = ALL
    block: bool = True
    cost: Cost = None
    algorithm: str | None = None
    cost_after: Callable[[Any], int] | None = None
    failure_policy: str | None = None
    name: str = ""
    number: int = 1

    @cached_property
    def methods(self) -> frozenset[str]:
        """The methods that are limited, in upper case; empty = all."""
        given = self.method if isinstance(self.method, list | tuple | set | frozenset) else [self.method]
        names = [each.upper() if isinstance(each, str) else each for each in given or [""]]
        if wrong := [each for each in names if each is not None and each not in _METHODS]:
            raise _wrong(f"method: {wrong[0]!r} is no method. Write one such as 'POST', or a list of several.")
        return frozenset(filter(None, names))

    @cached_property
    def fixed_rate(self) -> tuple[int, float] | None:
        """The rate as quota and window, if it is the same for each request; else `None`."""
        return None if _may_differ(self.rate) else parse_rate(self.rate)

    def check(self) -> RatelimitArguments:
        """Return these arguments. Raises ImproperlyConfigured if they would limit nothing, or fail at each request."""
        has_rate = self.key is not None or self.rate is not None
        _check_group(self.group, is_needed=not has_rate, may_be_rate=self.rate is not None)
        if self.rate is not None and self.key is None:
            raise _wrong("a rate needs a key, such as key='ip'.")
        if self.key is not None:
            check_key(self.key)
        check_failure_policy(self.failure_policy, has_rate=has_rate)
        for name in ("key", "rate", "cost", "cost_after"):
            if iscoroutinefunction(given := getattr(self, name)):
                raise _wrong(f"{name} must be a function without async, not {name_of(given)}.")
        if self.cost_after is not None and not callable(self.cost_after):
            raise _wrong(f"cost_after must be a function of the response, not {self.cost_after!r}.")
        try:
            if self.cost is not None and not callable(self.cost):
                whole_units(self.cost)
            if self.algorithm is not None:
                known_algorithm(self.algorithm)
        except (TypeError, ValueError) as error:
            raise _wrong(str(error)) from error
        _ = self.methods, self.fixed_rate
        return self

    def resolve(self, request: Any, function: Callable[..., Any] | None) -> LimiterCall:
        """Return the call for this request. Raises SynchronousOnlyOperation on an event loop if it would block."""
        if not _peers_settings().is_on or (self.methods and request.method not in self.methods):
            return NO_CALL
        cost = self.cost
        if cost is not None and callable(cost):
            cost = _called_cost(cost, request)
        if self.group and self.key is None and self.rate is None:
            return LimiterCall(self.group, None, cost)
        group = self.group or self.name or name_of(function)
        rate = self.fixed_rate or parse_rate(_called(self.rate, group, request))
        if rate is None:
            return NO_CALL
        if not self.key:
            raise ImproperlyConfigured(f"@ratelimit of {group}: a rate needs a key, such as key='ip'.")
        return LimiterCall(None, InlineRule(self._rule(group, *rate), _key_value(self.key, group, request)), cost)

    def register_rule(self, view: Callable[..., Any]) -> None:
        """Register the rule for the admin before the first request, if it is the same for every request."""
        if self.key and self.fixed_rate and view.__module__ != STAND_INS:
            self._rule(self.group or self.name or name_of(view), *self.fixed_rate)

    @property
    def scope(self) -> str:
        """The scope whose rules apply; "" = it has a rate."""
        return self.group if self.group and self.key is None and self.rate is None else ""

    def _rule(self, group: str, quota: int, window: float) -> RuleRecord:
        try:
            rule = _rule_of(self, group, quota, window, self.failure_policy or _peers_settings().failure_policy)
        except ValueError as error:
            raise ImproperlyConfigured(f"@ratelimit of {group}: {error}") from error
        inline.register(rule)
        return rule


@lru_cache(maxsize=1_000)
def _rule_of(arguments: RatelimitArguments, group: str, quota: int, window: float, failure_policy: str) -> RuleRecord:
    """Return the rule of a rate. Cached, because finding its slug takes longer than the rest of a call."""
    names, rate = [group], f"{quota}-{window:.15g}s"  # each rate has its own counter, as in django-ratelimit
    if arguments.group:  # shared by all decorators with this group
        names += [_label(arguments.key), rate, "".join(sorted(arguments.methods))]
    else:
        names += [str(arguments.number)] if arguments.number > 1 else []
        names += [] if arguments.fixed_rate and arguments.number else [rate]
    return inline.rule_of(
        inline.slug_of(*names),
        quota,
        window,
        _label(arguments.key),
        algorithm=arguments.algorithm,
        mode="enforce" if arguments.block else "shadow",
        methods=arguments.methods,
        missing_partition="ip",
        failure_policy=failure_policy,
    )


class _PeersSettings(NamedTuple):
    """The settings of django-ratelimit. address: how it finds a caller's address; all `None` = as we do."""

    is_on: bool
    failure_policy: str
    address: tuple[Any, ...]


@cache
def _peers_settings() -> _PeersSettings:
    """Return these settings. Cached until one changes: Django takes long to find out that it has no such setting."""
    fail_open = django_setting("RATELIMIT_FAIL_OPEN")
    return _PeersSettings(
        bool(django_setting("RATELIMIT_ENABLE", True)),
        "local" if fail_open is None else "open" if fail_open else "closed",
        tuple(map(django_setting, _ADDRESS_SETTINGS)),
    )


def _forget_settings(**_signal: Any) -> None:
    _peers_settings.cache_clear()


setting_changed.connect(_forget_settings, dispatch_uid="django_ratelimiter.decorators")


def _check_group(group: Any, *, is_needed: bool, may_be_rate: bool) -> None:
    """Raise ImproperlyConfigured for a group that is no text, and for a rate in its place."""
    if not isinstance(group, str | None) or (is_needed and not group):
        raise _wrong(f"group must be the name of a scope or of a counter, not {group!r}.")
    if group and not may_be_rate:
        with suppress(ValueError):
            inline.parse_rate(group)
            raise _wrong(f"the first argument is the group. Write rate={group!r}.")


def check_failure_policy(policy: str | None, *, has_rate: bool) -> None:
    """Raise ImproperlyConfigured for an unknown failure policy, or one without a rate."""
    if policy is None:
        return
    if not has_rate:
        raise _wrong("failure_policy needs a rate. The rules of a scope have their own.")
    if policy not in FAILURE_POLICIES:
        right = ", ".join(map(repr, FAILURE_POLICIES))
        raise _wrong(f"failure_policy must be one of {right}, not {policy!r}.")


def check_key(key: Any) -> None:
    """Raise ImproperlyConfigured for a key that no request can be counted by."""
    kind, _, name = key.partition(":") if isinstance(key, str) else ("", "", "")
    if callable(key) or key in _CALLER_KEYS or (name and kind in ("header", "get", "post")):
        return
    if not (isinstance(key, str) and (has_identity(key) or _DOTTED.fullmatch(key))):
        right = "'ip', 'user', 'user_or_ip', 'header:NAME', 'get:NAME', 'post:NAME', another identity, or a callable"
        raise _wrong(f"{key!r} is not a valid key. Write {right}.")


def django_request(request: Any) -> HttpRequest:
    """Return Django's request, from Django's or DRF's."""
    http: HttpRequest = getattr(request, "_request", request)
    return http


def _may_differ(rate: Rate) -> bool:
    """Return whether a rate depends on the request: it is a callable, or the dotted path of one."""
    return callable(rate) or (isinstance(rate, str) and _DOTTED.fullmatch(rate) is not None)


def _wrong(text: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"@ratelimit: {text}")


def name_of(function: Any) -> str:
    """Return module and name of a view: for a method with its class, for a class-based view those of its class.

    For a view made by `@api_view`, those of its function.
    """
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__qualname__"):  # a callable object
        function = type(function)
    cls = class_of(function)
    owner = getattr(function, "__self__", None)
    if owner is not None:
        return f"{name_of(type(owner))}.{function.__name__}"
    return name_of_class(cls or function)


def _label(given: Key | None) -> str:
    return given if isinstance(given, str) else getattr(given, "__qualname__", "")


def _called(given: Any, group: str, request: Any) -> Any:
    """Return the value. A callable, or the dotted path of one, is called for it."""
    if isinstance(given, str) and _DOTTED.fullmatch(given):
        given = import_string(given)
    value = given(group, request) if callable(given) else given
    if iscoroutine(value):
        value.close()
        raise _wrong(f"{name_of(given)} must be a function without async.")
    return value


def _called_cost(cost: Callable[[Any], int | None], request: Any) -> int | None:
    """Return what a function says that a request costs. What it raises is an error of the view, like that of a key."""
    units = cost(request)
    try:
        return None if units is None else whole_units(units)
    except (TypeError, ValueError) as error:
        raise _wrong(f"{name_of(cost)} returned {units!r}. {error}") from error


def parse_rate(rate: Any) -> tuple[int, float] | None:
    """Return quota and window in seconds; `None` = no limit."""
    if rate is None:
        return None
    try:
        if isinstance(rate, str):
            return inline.parse_rate(rate)
        quota, window = rate
        return whole_units(int(quota)), window
    except (TypeError, ValueError) as error:
        reason = error if isinstance(rate, str) else f"rate must be one such as '100/h' or (100, 3600), not {rate!r}."
        raise _wrong(str(reason)) from error


def _key_value(key: Key, group: str, request: Any) -> str | None:
    """Return the value that a request is counted by; `None` if the request lacks it."""
    kind, _, name = key.partition(":") if isinstance(key, str) else ("", "", "")
    value: Any = None
    if kind in _CALLER_KEYS and not name:
        identity = identify(django_request(request))
        if kind != "ip" and identity.user_id is not None:
            key, value = "user", identity.user_id
        elif kind != "user":
            key, value = "ip", address_of(request, identity)
    elif name and kind == "header":
        value = get_header(request, name)
    elif name and kind == "get":
        value = request.GET.get(name)
    elif name and kind == "post":
        value = spelled(f"field:{name}", request.POST.get(name, ""))
    elif isinstance(key, str) and has_identity(key):
        value = identify(django_request(request)).value(key)
    else:
        check_key(key)
        value, key = _called(key, group, request), "key"
    return None if value in (None, "") else f"{key}:{value}"


def get_header(request: Any, header: str) -> str:
    """Return a header of a request; empty if it is missing."""
    value: str = request.META.get("HTTP_" + header.replace("-", "_").upper(), "")
    return value


def address_of(request: Any, identity: Identity) -> str | None:
    """Return the caller's address, by the settings of django-ratelimit if one of them is set; `None` = not known."""
    meta, *masks = _peers_settings().address
    if meta is None and masks == [None, None]:
        return identity.ip
    if isinstance(meta, str) and "." in meta:
        meta = import_string(meta)
    address = str(meta(request) if callable(meta) else request.META.get(meta or "REMOTE_ADDR", ""))
    mask = (masks[1] or 64) if ":" in address else (masks[0] or 32)
    try:
        return str(ip_network(f"{address}/{mask}", strict=False))
    except ValueError:
        return None
