"""Throttle classes for Django REST framework: one for the rule set, and four that replace DRF's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from inspect import getattr_static
from threading import local
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from rest_framework import throttling
from rest_framework.exceptions import APIException, PermissionDenied
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import BaseThrottle

from . import limiter
from .backend import get_engine
from .conf import settings
from .decision import NOTHING_TO_DECIDE, UNAVAILABLE_RETRY_SECONDS, Decision, decide, without
from .engine.base import Verdict
from .exceptions import EngineUnavailable
from .identity import digest, identify
from .identity.users import user_key
from .limiter import io
from .limiter.charges import NO_ENTITLEMENT, InlineRule
from .limiter.templates import RuleTemplate
from .rules import inline
from .rules.inline import rate_from
from .rules.records import RuleRecord

if TYPE_CHECKING:  # it imports the classes in DEFAULT_THROTTLE_CLASSES, and so this module
    from rest_framework.views import APIView

_DISPATCH, _MEETS_RULES = "_ratelimit_dispatch", "_ratelimit_meets_rules"
#: The name of the counters of all throttles: DRF's throttles with the same key have one history.
_COUNTERS: Final = "code:throttle"


#: What a throttle shares with an earlier one of its view, and must not use: nothing, the slug, or the counters.
Second = Literal["", "slug", "counters"]


class LimiterUnavailable(APIException):
    """503: a rule with the failure policy `closed` could not be checked."""

    status_code = 503
    default_detail = _("This service cannot take the request right now. Please try again shortly.")
    default_code = "temporary_reduced_capacity"
    wait = UNAVAILABLE_RETRY_SECONDS  # DRF sends it as Retry-After


class RuleThrottle(BaseThrottle):
    """Decides the rules that need the authenticated user, and those of the view's `throttle_scope`.

    Rules that the middleware has decided before authentication are not decided again. If the request is rejected here,
    their charges are refunded in the same call. If a queue delays a request, it waits here, for as long as the rule
    lets a worker wait.
    """

    #: The middleware leaves rules that need the user to this class.
    decides_rules = True

    def allow_request(self, request: Request, view: APIView) -> bool:
        scope, extra = self.asks(request, view)
        decision = _decided(request, scope, extra)
        if decision.allowed:
            _hold(decision)
            return True
        # Answered here, not through wait(): that would store this request's result on the instance.
        view.throttled(request, decision.rejection.seconds)  # type: ignore[arg-type]  # None = never, says the framework

    def asks(self, request: Request, view: APIView) -> tuple[str | None, tuple[InlineRule, ...]]:
        """Return the scope whose rules also apply, and rules written in code."""
        return getattr(view, "throttle_scope", None), ()


class _CurrentRates:
    """The current DEFAULT_THROTTLE_RATES: a class attribute would keep the value at import."""

    def __get__(self, instance: object, owner: type) -> Any:
        return api_settings.DEFAULT_THROTTLE_RATES


class _CacheWithHistory:
    """DRF's cache, in which a throttle finds the requests that the limiter has counted, as subclasses of DRF's do.

    What a subclass adds to this history is charged; any other change of it is an error.
    """

    def __init__(self, throttle: SimpleRateThrottle) -> None:
        self._throttle, self._cache = throttle, throttling.SimpleRateThrottle.cache

    def get(self, key: str, default: Any = None, **options: Any) -> Any:
        if self._throttle._decision is not None and key == self._throttle.key:
            return self._throttle.history
        stored = self._cache.get(key, **options)
        return (self._throttle._counted(key) or default) if stored is None else stored

    def set(self, key: str, value: Any, *args: Any, **options: Any) -> None:
        if self._is_counted(key):
            self._throttle._record(len(value))
        else:
            self._cache.set(key, value, *args, **options)

    def __getattr__(self, name: str) -> Any:
        """Return another method of the cache, which is not for the key of the history."""
        method = getattr(self._cache, name)

        def call(*args: Any, **options: Any) -> Any:
            for named in (*args[:1], *options.values()):
                keys = [named] if isinstance(named, str) or not isinstance(named, Iterable) else named
                if any(map(self._is_counted, keys)):
                    raise _unchangeable(self._throttle, name)
            return method(*args, **options)

        return call if callable(method) else method

    def _is_counted(self, key: object) -> bool:
        """Return whether the limiter counts what a subclass has under this key, and not its own `allow_request`."""
        throttle = self._throttle
        is_limited = key == throttle.key and bool(getattr(throttle, "num_requests", None))
        return is_limited and (throttle._decision is not None or throttle._is_counted_here)


def _unchangeable(throttle: SimpleRateThrottle, what: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"{type(throttle).__qualname__}: self.cache cannot {what} the history of self.key, because the limiter counts: "
        "read it by `get`, and add requests to it by `set`."
    )


class _Cache:
    """The cache of a class, or of an instance with its history."""

    def __get__(self, instance: Any, owner: type) -> Any:
        return throttling.SimpleRateThrottle.cache if instance is None else _CacheWithHistory(instance)


class SimpleRateThrottle(local, throttling.SimpleRateThrottle):
    """Replacement for DRF's class of this name. Decides exactly and atomically, together with the rule set.

    Subclasses can set and override the same names as in DRF. If several throttles of a view apply, and one rejects a
    request, none is charged. Rates up to 10,000 requests are exact; above that, `sliding_window_counter` is used.
    A subclass finds the counted requests in `cache`, and can add some there: its own `throttle_success` says how often
    a request counts. Its own `timer` sets the limiter's time, too.

    As in DRF, results are attributes of the instance. They are local to the thread, so instances can be shared.
    """

    decides_rules = True
    THROTTLE_RATES = _CurrentRates()
    cache = _Cache()

    key: Any = None
    #: Of the class, or by its scope in `THROTTLE_RATES`.
    rate: Any = None
    num_requests: int | None
    duration: Any
    _system_timer: ClassVar[Any] = throttling.SimpleRateThrottle.timer
    _decision: Decision | None = None
    #: The rules of this scope also apply.
    _rule_scope: str | None = None
    _history: list[float] | None = None
    #: How many requests the subclass knows in the history.
    _known = 0
    #: How often a subclass counts the request while it is asked; `None` = it charges what it records.
    _times: int | None = None
    #: False for a subclass whose own `allow_request` may keep its own history in the cache.
    _is_counted_here: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if getattr_static(cls, "cache") is not SimpleRateThrottle.__dict__["cache"]:
            raise ImproperlyConfigured(
                f"{cls.__qualname__}.cache: the limiter counts in the cache that RATELIMITER['CACHE_ALIAS'] names. "
                "Remove this attribute."
            )
        own = cls.allow_request
        if own.__module__ != __name__ and not hasattr(own, _MEETS_RULES):
            cls.allow_request = _meeting_rules(own)  # type: ignore[assignment, method-assign]
            cls._is_counted_here = False

    def parse_rate(self, rate: str | None) -> tuple[int, int] | tuple[None, None]:
        """Return requests and seconds; (None, None) = no limit. Raises ImproperlyConfigured for an invalid rate."""
        if rate is None:
            return None, None
        if not isinstance(rate, str) or (found := rate_from(rate)) is None:
            raise ImproperlyConfigured(
                f"{type(self).__qualname__}: {rate!r} is not a throttle rate. Write a number and a period, as in "
                "'10/min'; periods are second, minute, hour and day."
            )
        return found

    def get_ident(self, request: Any) -> str:
        """Return the caller's address: by NUM_PROXIES, else by TRUSTED_PROXIES if it is set, else as DRF does.

        DRF then trusts the whole of X-Forwarded-For.
        """
        http, trusted = getattr(request, "_request", request), settings.TRUSTED_PROXIES
        if api_settings.NUM_PROXIES is None and (trusted.hops or trusted.networks or trusted.unix):
            address = identify(http).ip
            if address is not None:
                return address
        if "HTTP_X_FORWARDED_FOR" in http.META:
            return super().get_ident(request)
        return http.META.get("REMOTE_ADDR")  # type: ignore[no-any-return]  # with any NUM_PROXIES

    def allow_request(self, request: Any, view: Any) -> bool:
        """Return whether this throttle and the matching rules allow the request, and charge it if they do."""
        self._decision = self._history = answer = None
        extra = self._extra(request, view)
        if extra is None and not isinstance(request, Request | HttpRequest):
            return True
        http, asked = _begin(request)
        second: Second = ""
        if extra is not None:
            earlier: Decision = getattr(http, "ratelimit", NOTHING_TO_DECIDE)
            if not earlier.allowed:
                return self._looks_only(request, extra)
            if earlier is not NOTHING_TO_DECIDE and (asked or extra.rule.slug in earlier.slugs):
                extra = extra._replace(rule=self._rule(self.num_requests or 0, second := self._shares(asked, extra)))
            asked[extra.rule.slug] = extra
            if type(self).throttle_success is not throttling.SimpleRateThrottle.throttle_success:  # it may count 0 or 2
                extra, answer = self._ask_first(request, extra, second)
        self._decision = decision = _decided(request, self._rule_scope, () if extra is None else (extra,))
        if extra is None:
            allowed = decision.allowed
        elif decision.allowed:
            allowed = True if answer is None else answer
        else:
            allowed = self.throttle_failure()
            if allowed:  # allowed by a subclass; the next throttle must see it as allowed
                del asked[extra.rule.slug]
                _forget(http, {extra.rule.slug})
        if allowed and decision.delay:
            io.sleep(decision.delay)
        return allowed

    def _meets_rules(self, request: Any) -> bool:
        """Return whether the rules allow a request that a subclass has allowed, unless they are decided already."""
        http = getattr(request, "_request", request)
        if not isinstance(http, HttpRequest) or http.__dict__.get(_DISPATCH, (None,))[0] is request:
            return True
        _begin(request)
        self._decision = decision = _decided(request, self._rule_scope)
        _hold(decision)
        return decision.allowed

    def _looks_only(self, request: Any, extra: InlineRule) -> bool:
        """Return whether this throttle would allow a request that another one rejected. DRF uses the longest wait."""
        self._decision = self._peek(request, extra)
        return self._decision.allowed or self.throttle_failure()

    def _peek(self, request: Any, extra: InlineRule) -> Decision:
        """Return what this throttle alone would decide now."""
        decision = limiter.peek(request, extra=(extra,))
        return decide([result for result in decision.results if result.rule is extra.rule], decision.version)

    def _ask_first(self, request: Any, extra: InlineRule, second: Second) -> tuple[InlineRule, bool | None]:
        """Return this throttle as a rule that costs as often as the subclass's `throttle_success` counts the request,
        and what that returned; `None` if the throttle rejects the request, so that it is not called.
        """
        type(self)._is_counted_here = True
        self._decision = decision = self._peek(request, extra)
        if not decision.allowed:
            return extra, None
        after, self._times = self._times, 0
        try:
            answer, times = self.throttle_success(), self._times
        finally:
            self._times = after
        self._history = None
        cost = min([times, *[each.verdict.remaining for each in decision.results if each.verdict]])
        rule = _rule_of(type(self), self.scope, self.num_requests or 0, self.duration, second, cost)  # type: ignore[arg-type]
        return extra._replace(rule=rule), answer

    def wait(self) -> float | None:
        """Return the seconds until the rejected request would be allowed; `None` = never."""
        return super().wait() if self._decision is None else self._decision.retry_after

    @property
    def history(self) -> list[float]:
        """A time for each request that counts, this one included, the newest first: see `_times_of`."""
        if self._history is None:
            verdicts = [each.verdict for each in self._decision.results if each.verdict] if self._decision else []
            name, quota = f":{digest(str(self.key))}", self.num_requests
            own = [each for each in verdicts if each.charge.key.endswith(name) and each.charge.limit.quota == quota]
            self._history = _times_of(own[0], self.now, self.duration) if own else []
            self._known = len(self._history)
        return self._history

    @history.setter
    def history(self, history: list[float]) -> None:
        self._history = history

    def _record(self, entries: int) -> None:
        """Let what a subclass has added to the history count: with the decision that follows, or else at once."""
        if self._decision is not None:
            _ = self.history  # to know how many there are
        more, self._known = entries - self._known, entries
        if more < 0:
            raise _unchangeable(self, "shorten")
        if self._times is not None:
            self._times += more
        elif more and settings.ENABLED:
            self._ask("check", self.key, cost=more, gating=False, usage=None, count_refusals=True)

    def _extra(self, request: Any, view: Any) -> InlineRule | None:
        """Return this throttle as a rule with the value that it counts by; `None` if it does not limit the request."""
        if self.rate is None:
            return None
        key, quota = self.get_cache_key(request, view), self.num_requests
        self.key = key
        if key is None or quota is None:
            return None
        timer = self.timer
        now = self.now = timer()
        now_us = None if timer is type(self)._system_timer else round(now * 1_000_000)
        return InlineRule(self._rule(quota), str(key), now_us)

    def _counted(self, key: str) -> list[float]:
        """Return the times of the requests that this throttle's limit counts for a key, before it decides."""
        if not getattr(self, "num_requests", None) or not isinstance(key, str):
            return []
        [verdict] = self._ask("peek", key)
        times = _times_of(verdict, self.timer(), self.duration)
        if key == self.key:
            self._known = len(times)
        return times

    def _ask(self, method: Literal["check", "peek"], key: Any, **terms: Any) -> Sequence[Verdict]:
        """Return the engine's verdict on a request with this key. terms: in place of those of its charge."""
        [charge] = RuleTemplate(self._rule(self.num_requests or 0), NO_ENTITLEMENT).charges(None, None)
        now_us = None if self.timer is type(self)._system_timer else round(self.timer() * 1_000_000)
        try:
            ask: Callable[..., Sequence[Verdict]] = getattr(get_engine(), method)
            return ask([charge.fill(digest(str(key)))._replace(**terms)], now_us=now_us)
        except EngineUnavailable as error:
            raise LimiterUnavailable from error

    def _rule(self, quota: int, second: Second = "") -> RuleRecord:
        """Return this throttle as a rule."""
        try:
            rule = _rule_of(type(self), self.scope, quota, self.duration, second)  # type: ignore[arg-type]  # hashable
        except ValueError as error:
            raise ImproperlyConfigured(
                f"{type(self).__qualname__}: {self.rate!r} cannot be enforced: {error}"
            ) from error
        inline.register(rule)
        return rule

    def _shares(self, asked: Mapping[str, InlineRule], extra: InlineRule) -> Second:
        """Return what this throttle's rule shares with an earlier one of this view, unless that was this one.

        asked: the rules of the earlier throttles by slug. Throttles with one history do not count a request twice.
        """
        same = asked.get(extra.rule.slug)
        if same is not None and same[:2] == extra[:2]:
            return ""
        counters = [(each.value, each.rule.limits[None][0].limit.tag) for each in (extra, *asked.values())]
        return "counters" if counters[0] in counters[1:] else "slug"


class AnonRateThrottle(SimpleRateThrottle, throttling.AnonRateThrottle):
    """Limits requests without an authenticated user, by the caller's address."""

    scope: str = "anon"


class UserRateThrottle(SimpleRateThrottle, throttling.UserRateThrottle):
    """Limits requests by user, and those without one by the caller's address."""

    scope: str = "user"

    def get_cache_key(self, request: Any, view: Any) -> str:
        """Return the key, with the model of a caller that is not a user; see `identity.users.user_key`."""
        ident = user_key(request.user, request) or self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": ident}


class ScopedRateThrottle(SimpleRateThrottle, throttling.ScopedRateThrottle):
    """Limits requests to views that have a `throttle_scope`, by user or address. Rules of that scope apply, too."""

    get_cache_key = UserRateThrottle.get_cache_key

    def __init__(self) -> None:  # the rate depends on the view
        pass

    def allow_request(self, request: Any, view: Any) -> bool:
        self.scope = self._rule_scope = getattr(view, self.scope_attr, None)
        self.rate = self.get_rate() if self.scope else None
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return super().allow_request(request, view)


@lru_cache(maxsize=1_000)
def _rule_of(
    throttle: type[SimpleRateThrottle], scope: str | None, quota: int, window: int, second: Second, cost: int = 1
) -> RuleRecord:
    """Return the rule of a throttle. As in DRF, throttles with the same key share their counters."""
    slug = inline.slug_of(scope or "", throttle.__qualname__ if second or not scope else "")
    rule = inline.rule_of(slug, quota, window, "caller")
    if cost != 1:
        rule = replace(rule, cost=cost)
    return rule if second == "counters" else replace(rule, counters=_COUNTERS)


def _times_of(verdict: Verdict, now: float, window: float) -> list[float]:
    """Return a time for each counted request, as DRF stores them, the newest first.

    The times of the newest, and of the oldest when a request is rejected, are correct. Those between are not known.
    """
    times = [min(now, now + verdict.reset_after - window)] * (verdict.charge.limit.capacity - verdict.remaining)
    if times and not verdict.allowed and verdict.retry_after is not None:
        times[-1] = now + verdict.retry_after - window
    return times


def _meeting_rules(own: Callable[[Any, Any, Any], bool]) -> Callable[[Any, Any, Any], bool]:
    """Wrap a subclass's `allow_request`, which may not call ours, so that the rules are decided too."""

    @wraps(own)
    def allow_request(self: SimpleRateThrottle, request: Any, view: Any) -> bool:
        self._decision = self._history = None
        return own(self, request, view) and self._meets_rules(request)

    setattr(allow_request, _MEETS_RULES, True)
    return allow_request


def _decided(request: Any, scope: str | None, extra: tuple[InlineRule, ...] = ()) -> Decision:
    """Return the decision on a request. Raises if it is rejected by an access entry or a failure policy."""
    decision = limiter.check(request, scope=scope, extra=extra)
    if decision.allowed:
        return decision
    if decision.access is not None:
        raise PermissionDenied
    if decision.unavailable:
        raise LimiterUnavailable
    return decision


def _begin(request: Request | HttpRequest) -> tuple[HttpRequest, dict[str, InlineRule]]:
    """Record that the throttles of `request` are being called. Return Django's request, and their rules by slug.

    A view may be called several times with one Django request, as in batches. Throttles count each time.
    """
    http: HttpRequest = getattr(request, "_request", request)
    latest, asked = http.__dict__.get(_DISPATCH, (None, {}))
    if latest is not request:
        if asked:
            _forget(http, {*asked})
        asked = {}
        http.__dict__[_DISPATCH] = (request, asked)
    return http, asked


def _forget(http: HttpRequest, slugs: set[str]) -> None:
    """Remove these rules from the decision, as if they had not been decided."""
    decision: Decision | None = getattr(http, "ratelimit", None)
    if decision is not None:
        http.ratelimit = without(decision, slugs)  # type: ignore[attr-defined]


def _hold(decision: Decision) -> None:
    """Wait for the delay of an allowed request; a rejected one has no delay."""
    if decision.has_consequences and decision.delay:
        io.sleep(decision.delay)
