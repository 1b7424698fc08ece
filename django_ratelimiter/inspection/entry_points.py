"""From a question to a request, and the decision at each entry point: the code of the request path, without charges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote_to_bytes

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.urls import NoReverseMatch, Resolver404, get_resolver, get_script_prefix, resolve, reverse
from django.utils.module_loading import import_string
from django.utils.translation import get_language_from_request
from django.utils.translation import gettext as _

from ..backend import get_engine
from ..conf import django_setting, settings
from ..decision import NOTHING_TO_DECIDE, Decision, Owner
from ..decorators import limits_for
from ..engine.base import Charge, Verdict, Version
from ..engine.call import Call
from ..engine.coroutines import run_sync
from ..identity import access_entry_for, meta_name
from ..identity.proxies import is_peer
from ..limiter.charges import NO_ENTITLEMENT, LimitRequest, entitlement_of, limit_request
from ..limiter.io import THREAD, TrialIO
from ..limiter.path import decide
from ..middleware import ASKED_BY_GATEWAYS, decides_later, exemption
from ..rules import cache
from ..rules.records import Facts
from ..rules.routes import all_views, chosen_classes, throttle_scope
from ..rules.ruleset import RuleSet
from ..rules.tiers import callers_differ
from ..values.access import AccessRecord
from .caller import UnknownCaller, find_user
from .question import Question, QuestionError
from .words import Bypass


def build_request(question: Question) -> HttpRequest:
    """Return the request, with its user, before a view is found. Raises QuestionError."""
    from django.test import RequestFactory  # here, because it loads the whole test framework

    parts, peer = question.address, question.ip.strip().partition("/")[0]
    if peer and not is_peer(peer):
        raise QuestionError("ip", _("This is not an IP address."))
    if not question.path.strip() and not question.view:
        raise QuestionError("path", _("Enter a path, or the name of a view."))
    path = f"/{parts.path.removeprefix('/')}" if question.path.strip() else _path_of(question)
    root = get_script_prefix().rstrip("/")
    inside = root and path.startswith(f"{root}/")
    environ = {
        "SCRIPT_NAME": root if inside else "",
        "PATH_INFO": unquote_to_bytes(_sent(path[len(root) :] if inside else path)).decode("latin-1"),
        "QUERY_STRING": _as_read(parts.query),
        "REMOTE_ADDR": peer,
        "HTTP_HOST": parts.netloc.rpartition("@")[2] or "localhost",
    }
    if question.api_key:
        environ[meta_name(settings.API_KEY_HEADER)] = question.api_key
    fields = {meta_name(name): _as_read(value) for name, value in question.headers}
    environ |= {name: value for name, value in fields.items() if name.startswith("HTTP_")}  # it has no body
    http: HttpRequest = RequestFactory().generic(question.method.upper() or "GET", "/", **environ)  # type: ignore[arg-type]
    try:
        http.user = find_user(question.user) if question.user else AnonymousUser()  # who counts as logged in
    except UnknownCaller as error:
        raise QuestionError("user", str(error)) from error
    if http.user is None:
        raise QuestionError("user", _("No user or API key matches this."))
    return http


def resolve_view(http: HttpRequest) -> None:
    """Resolve the path, as Django does before it calls the view."""
    try:
        http.resolver_match = get_resolver(getattr(http, "urlconf", None)).resolve(http.path_info)
    except Resolver404:
        http.resolver_match = None


def language_of(http: HttpRequest) -> str:
    """Return the language of the response."""
    if "django.middleware.locale.LocaleMiddleware" in django_setting("MIDDLEWARE", ()):
        return get_language_from_request(http, check_path=True)
    return str(django_setting("LANGUAGE_CODE"))


def has_limiter() -> bool:
    """Return whether the project has our middleware, or a subclass."""
    wanted = import_string("django_ratelimiter.middleware.RateLimitMiddleware")
    found = map(import_string, django_setting("MIDDLEWARE", ()))
    return any(each is wanted or (isinstance(each, type) and issubclass(each, wanted)) for each in found)


def _path_of(question: Question) -> str:
    """Return the path of the named view, with the values for what it captures."""
    captured = {name[5:]: value for name, value in question.identities.items() if name.startswith("path:")}
    try:
        return reverse(question.view, kwargs=captured)
    except NoReverseMatch:
        routes = [match.route for match in all_views(get_resolver()) if match.view_name == question.view]
        if not routes:
            raise QuestionError("view", _("No view has this name.")) from None
        for path in (f"{get_script_prefix()}{route}" for route in routes):  # of a view without a name
            with suppress(Resolver404):
                if resolve(path).view_name == question.view:
                    return path
        text = _("The path of this view has parts that vary. Enter its path, or the parts as “path:NAME” identities.")
        raise QuestionError("view", text) from None


def _sent(text: str) -> bytes:
    """Return the bytes that are sent; a shell's argument may contain some that are not text."""
    return text.encode(errors="surrogateescape")


def _as_read(text: str) -> str:
    """Return how a server decodes them in a header field and in a query."""
    return _sent(text).decode("latin-1")


class EntryPoint(TrialIO):
    """One call of the limiter. Keeps what it would charge, and compares the version as a real call does."""

    def __init__(self, request: LimitRequest) -> None:
        super().__init__(THREAD)
        self.request = request
        #: Why it tested no rule.
        self.bypass: Bypass = ""
        self.access: AccessRecord | None = None
        self.entitlement = NO_ENTITLEMENT
        #: Why the caller has this tier and multiplier, with the primary keys of assignments.
        self.reasons: dict[str, int] = {}
        #: What it would charge, each with its counter now; `None` = not known.
        self.charges: list[tuple[Owner, Charge, Verdict | None]] = []
        #: Why the engine did not answer.
        self.problem = ""

    async def check(
        self,
        charges: Call,
        version: Version | None = None,
        receipts: Sequence[Verdict] = (),
        now_us: int | None = None,
    ) -> Sequence[Verdict]:
        get_engine().check((), version=version)
        verdicts = await super().check(charges, version, receipts, now_us) if charges else ()
        self._note(charges, verdicts)
        return verdicts

    def note_outage(self, charges: Call, error: Exception) -> None:
        self.problem = str(error)
        self._note(charges, [None] * len(charges))

    def _note(self, charges: Call, verdicts: Sequence[Verdict | None]) -> None:
        template: Any = charges.template
        self.charges += zip(template.owners, charges, verdicts, strict=True)


@dataclass(slots=True)
class Trial:
    """All entry points in order, and the result for the request."""

    question: Question
    http: HttpRequest
    #: The current ones.
    rules: RuleSet
    #: Why the middleware tests no rule.
    bypass: Bypass = ""
    entry_points: list[EntryPoint] = field(default_factory=list)
    #: Scopes that code would ask for if the request were not rejected before.
    unreached: list[str] = field(default_factory=list)
    #: The limits in the view's code, which are not decided.
    in_code: tuple[str, ...] = ()
    #: Seconds, of all entry points.
    delay: float = 0.0

    @property
    def facts(self) -> Facts:
        """What rules are compared with."""
        return (self.entry_points[-1].request if self.entry_points else limit_request(self.http)).facts

    @property
    def decision(self) -> Decision:
        """The decision so far."""
        decision: Decision = getattr(self.http, "ratelimit", NOTHING_TO_DECIDE)
        return decision

    def ask(self, scope: str | None = None, *, before_authentication: bool = False) -> None:
        """Decide for an entry point, as `limiter.check` does. The delay is recorded, but not waited for."""
        if not self.decision.allowed:
            self.unreached += [scope] if scope else []
            return
        request = limit_request(self.http, scope, before_authentication=before_authentication)
        assert request.identity is not None
        host = {} if self.question.names_host else {"host": ""}  # the request has some, because views need one
        for name, value in {**host, **self.question.identities}.items():
            request.identity.assume(name, value)
        point = EntryPoint(request)
        self.entry_points.append(point)
        decision = run_sync(decide(point, request))
        self.rules = cache.current_rules()
        self._note_access_and_tier(point)
        if decision.delay:
            self.delay += decision.delay
            self.http.ratelimit = replace(decision, delay=0.0)  # type: ignore[attr-defined]

    def _note_access_and_tier(self, point: EntryPoint) -> None:
        """Note why the path tested no rule, or with which tier it did."""
        if not settings.ENABLED:
            point.bypass = "disabled"
        elif not self.rules.enforced:
            point.bypass = "stopped"
        elif access := access_entry_for(cache.access_list(), point.request.identity):
            point.access, point.bypass = access, "denied" if access.action == "deny" else "allowed"
        elif self.decision.is_exempt:
            for each in self.entry_points:
                each.bypass, each.charges = "exempt caller", []
        elif callers_differ(self.rules):
            point.entitlement = entitlement_of(self.rules, point.request, point.reasons.__setitem__)


def run_trial(question: Question, http: HttpRequest) -> Trial:
    """Decide at the middleware, then for the scopes that the view names, until one rejects. The view does not run."""
    view: Any = http.resolver_match.func if http.resolver_match else None
    trial, later = Trial(question, http, cache.latest_rules()), decides_later(view)
    if hasattr(view, ASKED_BY_GATEWAYS):
        trial.bypass = "gateway"
    else:
        trial.bypass = exemption(http) if has_limiter() else "no middleware"
    if not trial.bypass:
        trial.ask(before_authentication=later)
    scopes, trial.in_code = _limits_in_code(view, http.method or "")
    if later:
        trial.ask(throttle_scope(view))
    for scope in dict.fromkeys((*scopes, question.scope)):
        if scope:
            trial.ask(scope)
    return trial


def _limits_in_code(view: Any, method: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the scopes that a view names for requests of this method, and the names of its own limits."""
    limits = limits_for(view, method)
    throttles = [each for each in chosen_classes(view, "throttle_classes") if not _asks_rules_alone(each)]
    named = [f"@ratelimit(key={_text(each.key)}, rate={_text(each.rate)})" for each in limits if not each.scope]
    named += map(_text, throttles)
    if getattr(view, "__module__", "") == "ninja.operation":
        named.append("django-ninja")
    return [each.scope for each in limits if each.scope], tuple(dict.fromkeys(named))


def _text(given: Any) -> str:
    """Return a name for a class or a function, and other values as text."""
    return getattr(given, "__qualname__", str(given))


def _asks_rules_alone(throttle: Any) -> bool:
    """Return whether a throttle is our `RuleThrottle`, which has no rate of its own."""
    return getattr(throttle, "decides_rules", False) and not hasattr(throttle, "rate")
