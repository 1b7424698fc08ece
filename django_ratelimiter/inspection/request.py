"""From a question to a Django request. Nothing is sent, stored or logged in."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from string import punctuation
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.urls import NoReverseMatch, Resolver404, get_resolver, get_script_prefix, resolve, reverse
from django.utils.functional import SimpleLazyObject
from django.utils.module_loading import import_string
from django.utils.translation import get_language_from_request
from django.utils.translation import gettext as _

from ..conf import django_setting, has_identity, settings, unknown_identity
from ..gateway import GatewayError, GatewayOptions, environ_of
from ..identity import Identity, meta_name
from ..middleware import ASKED_BY_GATEWAYS
from ..rules.routes import all_views
from ..rules.tiers import is_known_api_key
from .caller import UnknownCaller, find_user, only_a_hash
from .question import Question, QuestionError

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_SESSIONS: Final = "django.contrib.sessions.middleware.SessionMiddleware"
_LIMITER: Final = "django_ratelimiter.middleware.RateLimitMiddleware"
_LOCALES: Final = "django.middleware.locale.LocaleMiddleware"


class BuiltRequest(WSGIRequest):
    """A request that was not sent."""

    #: The options of the gateway's view; `None` = it is for this site.
    gateway: GatewayOptions | None = None
    #: Why that view decides nothing.
    gateway_error: GatewayError | None = None
    #: Its body was read, but the question has none.
    body_missed = False

    @property
    def body(self) -> bytes:
        self._note()
        return super().body

    def read(self, *size: Any) -> bytes:
        self._note()
        return super().read(*size)

    def forget_body(self) -> None:
        """Reset the request as if its body had not been read."""
        self.body_missed = False
        for name in ("_post", "_files"):
            self.__dict__.pop(name, None)

    def _load_post_and_files(self) -> None:
        self._note()
        super()._load_post_and_files()

    def _note(self) -> None:
        self.body_missed = self.body_missed or not (self.gateway or self.META.get("CONTENT_LENGTH"))


@dataclass(slots=True)
class KnownCaller:
    """The caller of a request, as far as the question contains it.

    user: `None` = the user of the session. has_token: the user comes with a token that only the view can check.
    """

    user: Any
    api_key_hash: str
    has_token: bool = False


def build_request(question: Question) -> BuiltRequest:
    """Return the request, with its session, and without a user. Raises QuestionError."""
    from django.test import RequestFactory  # here, because it loads the whole test framework

    for name in question.identities:
        if name.isidentifier() and not has_identity(name):
            raise QuestionError("identities", unknown_identity(name))
    if question.gateway:
        return _build_forwarded(question)
    host, path, query = _address(question)
    root = get_script_prefix().rstrip("/")
    inside = root and path.startswith(f"{root}/")
    environ = {
        "SCRIPT_NAME": root if inside else "",
        "PATH_INFO": unquote_to_bytes(_sent(path[len(root) :] if inside else path)).decode("latin-1"),
        "QUERY_STRING": _as_read(query),
        "REMOTE_ADDR": question.ip.strip(),
        "SERVER_NAME": host,
        "HTTP_HOST": host,
        **_fields(question),
    }
    made = RequestFactory().generic(question.method.upper() or "GET", "/", _sent(question.body), "", **environ)
    http = BuiltRequest({**made.environ, **environ})  # Django decodes the path in place
    _add_session(http, question)
    return http


def gateway_views() -> dict[str, GatewayOptions]:
    """Return the views of this site for gateways, by route, such as "/gateway/"."""
    found = {f"/{match.route}": getattr(match.func, ASKED_BY_GATEWAYS, None) for match in all_views(get_resolver())}
    return {route: options for route, options in found.items() if options is not None}


def _build_forwarded(question: Question) -> BuiltRequest:
    """Return the request that a gateway's view makes, by the code of that view."""
    options = gateway_views().get(f"/{question.gateway.strip('/ ')}{'/' * question.gateway.endswith('/')}")
    if options is None:
        raise QuestionError("gateway", _("No view that gateways ask has this route."))
    for name in ("view", "session", *(() if options.user_header else ("user",))):
        if getattr(question, name):
            raise QuestionError(name, _("This is not known for a request that a gateway asks about."))
    address = question.ip.strip()
    if not address:
        raise QuestionError("ip", _("Enter the address of the caller: a gateway always sends it."))
    query = question.path.strip().partition("?")[2]
    meta = {**_fields(question), "REMOTE_ADDR": address, "HTTP_X_FORWARDED_FOR": address}
    meta.pop("HTTP_FORWARDED", None)
    if own := settings.TRUSTED_PROXIES.own:
        meta[own] = address
    elif settings.TRUSTED_PROXIES.field == "forwarded":
        meta["HTTP_FORWARDED"] = f'for="{f"[{address}]" if ":" in address else address}"'
    captured = None
    if "<path:path>" in question.gateway:
        captured, meta["QUERY_STRING"] = unquote(question.address.path, errors="surrogateescape"), _as_read(query)
    meta["HTTP_X_FORWARDED_METHOD"] = method = question.method.upper() or "GET"
    meta["HTTP_X_FORWARDED_URI"] = quote(question.path.strip(), safe=punctuation)
    try:
        http = BuiltRequest(environ_of(meta, method, captured, options))
        http.path = http.path_info  # as in the view
    except GatewayError as error:
        http = BuiltRequest({**meta, "REQUEST_METHOD": method, "wsgi.input": BytesIO()})
        http.gateway_error = error
    http.gateway = options
    return http


def find_caller(question: Question, http: BuiltRequest) -> KnownCaller:
    """Return the caller. Raises QuestionError for an unknown user."""
    user = None
    if question.user:
        try:
            user = find_user(question.user)
        except UnknownCaller as error:
            raise QuestionError("user", str(error)) from error
        if user is None:
            raise QuestionError("user", _("No user or API key matches this."))
    elif getattr(http, "session", None) is None:
        user = AnonymousUser()
    if settings.API_KEY_RESOLVER is not None and _is_hash(question.api_key):
        raise QuestionError("api_key", only_a_hash())
    return KnownCaller(user, question.api_key if _is_hash(question.api_key) else "")


def log_in(http: BuiltRequest, caller: KnownCaller, *, before_view: bool = False) -> None:
    """Set the caller's user on the request.

    before_view: only the view can check a token or a field Authorization. Until then the
    request has the user of its session.
    """
    has_token = caller.has_token or "HTTP_AUTHORIZATION" in http.META
    if caller.user is not None and not (before_view and has_token):
        http.user = caller.user
    elif getattr(http, "session", None) is None:
        http.user = AnonymousUser()
    else:
        http.user = SimpleLazyObject(lambda: get_user(http))  # type: ignore[assignment]


def assume_values(identity: Identity, question: Question, caller: KnownCaller) -> None:
    """Set the values in the question on the request."""
    if caller.api_key_hash:
        identity.assume("api_key", caller.api_key_hash)
    if not question.names_host:  # the request has some host, because views need one
        identity.assume("host", "")
    for name, value in question.identities.items():
        identity.assume(name, value)


def find_view(http: BuiltRequest) -> None:
    """Resolve the path, unless it belongs to another server, which has no view here."""
    if http.gateway is None:
        resolve_view(http)


def resolve_view(http: HttpRequest) -> None:
    """Resolve the path, as Django does before it calls the view."""
    try:
        http.resolver_match = get_resolver(getattr(http, "urlconf", None)).resolve(http.path_info)
    except Resolver404:
        http.resolver_match = None


def language_of(http: BuiltRequest) -> str:
    """Return the language of the response."""
    if _LOCALES in django_setting("MIDDLEWARE", ()):
        return get_language_from_request(http, check_path=True)
    return str(django_setting("LANGUAGE_CODE"))


def has_limiter() -> bool:
    """Return whether the project has our middleware."""
    return has_middleware(_LIMITER)


def has_middleware(path: str) -> bool:
    """Return whether the project has this middleware, or a subclass."""
    wanted = import_string(path)
    for each in django_setting("MIDDLEWARE", ()):
        found = import_string(each)
        if found is wanted or (isinstance(found, type) and issubclass(found, wanted)):
            return True
    return False


def _address(question: Question) -> tuple[str, str, str]:
    """Return host, path and query."""
    if question.view and not question.path:
        return "localhost", _path_of(question), ""
    parts = question.address
    if not question.path.strip():
        raise QuestionError("path", _("Enter a path, or the name of a view."))
    path = parts.path if parts.path.startswith("/") else f"/{parts.path}"
    return parts.hostname or "localhost", path, parts.query


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


def _fields(question: Question) -> dict[str, Any]:
    """Return the header fields as a server passes them on: several with one name are joined."""
    found: dict[str, Any] = {}
    for name, value in question.headers:
        if not _TOKEN.fullmatch(name) or "\n" in value or "\r" in value or "\0" in value:
            raise QuestionError("headers", _("%(name)r is not a header field.") % {"name": name})
        if "_" in name:  # servers drop these
            continue
        key, value = meta_name(name), _as_read(value)
        found[key] = f"{found[key]}{'; ' if key == 'HTTP_COOKIE' else ','}{value}" if key in found else value
    found.pop("CONTENT_LENGTH", None)
    api_key = question.api_key if question.api_key and not _is_hash(question.api_key) else ""
    return {meta_name(settings.API_KEY_HEADER): api_key, **found} if api_key else found


def _sent(text: str) -> bytes:
    """Return the bytes that are sent; a shell's argument may contain some that are not text."""
    return text.encode(errors="surrogateescape")


def _as_read(text: str) -> str:
    """Return how a server decodes them in a header field and in a query."""
    return _sent(text).decode("latin-1")


def _add_session(http: BuiltRequest, question: Question) -> None:
    """Add the session of its cookie, or the one in the question, read-only."""
    if not question.session and _SESSIONS not in django_setting("MIDDLEWARE", ()):
        return
    key = question.session or http.COOKIES.get(django_setting("SESSION_COOKIE_NAME"))
    session: Any = import_module(django_setting("SESSION_ENGINE")).SessionStore(key)
    session.flush = session.cycle_key = lambda: None  # a session that is not accepted must not be changed
    http.session = session


def _is_hash(api_key: str) -> bool:
    return bool(_HASH.fullmatch(api_key)) and is_known_api_key(api_key)
