"""From a question to a Django request. Nothing is sent, stored or logged in."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest
from django.urls import NoReverseMatch, Resolver404, get_resolver, get_script_prefix, resolve, reverse
from django.utils.module_loading import import_string
from django.utils.translation import get_language_from_request
from django.utils.translation import gettext as _

from ..conf import django_setting, has_identity, settings, unknown_identity
from ..identity import Identity, meta_name
from ..rules.routes import all_views
from ..rules.tiers import is_known_api_key
from .caller import UnknownCaller, find_user, is_hash, only_a_hash
from .question import Question, QuestionError

_LIMITER: Final = "django_ratelimiter.middleware.RateLimitMiddleware"
_LOCALES: Final = "django.middleware.locale.LocaleMiddleware"


def build_request(question: Question) -> HttpRequest:
    """Return the request, with its user, before a view is found. Raises QuestionError."""
    from django.test import RequestFactory  # here, because it loads the whole test framework

    for name in question.identities:
        if name.isidentifier() and not has_identity(name):
            raise QuestionError("identities", unknown_identity(name))
    parts = question.address
    if not question.path.strip() and not question.view:
        raise QuestionError("path", _("Enter a path, or the name of a view."))
    path = f"/{parts.path.removeprefix('/')}" if question.path.strip() else _path_of(question)
    root = get_script_prefix().rstrip("/")
    inside = root and path.startswith(f"{root}/")
    environ = {
        "SCRIPT_NAME": root if inside else "",
        "PATH_INFO": unquote_to_bytes(_sent(path[len(root) :] if inside else path)).decode("latin-1"),
        "QUERY_STRING": _as_read(parts.query),
        "REMOTE_ADDR": question.ip.strip(),
        "HTTP_HOST": parts.netloc.rpartition("@")[2] or "localhost",
    }
    if settings.API_KEY_RESOLVER is not None and _is_known_hash(question.api_key):
        raise QuestionError("api_key", only_a_hash())
    if question.api_key and not _is_known_hash(question.api_key):
        environ[meta_name(settings.API_KEY_HEADER)] = question.api_key
    fields = {meta_name(name): _as_read(value) for name, value in question.headers}
    environ |= {name: value for name, value in fields.items() if name.startswith("HTTP_")}  # it has no body
    http: HttpRequest = RequestFactory().generic(question.method.upper() or "GET", "/", **environ)  # type: ignore[arg-type]
    http.user = _user_of(question)
    return http


def _user_of(question: Question) -> Any:
    """Return the user, who counts as logged in. Raises QuestionError for an unknown one."""
    if not question.user:
        return AnonymousUser()
    try:
        user = find_user(question.user)
    except UnknownCaller as error:
        raise QuestionError("user", str(error)) from error
    if user is None:
        raise QuestionError("user", _("No user or API key matches this."))
    return user


def assume_values(identity: Identity, question: Question) -> None:
    """Set the values in the question on the request."""
    if _is_known_hash(question.api_key):
        identity.assume("api_key", question.api_key)
    if not question.names_host:  # the request has some host, because views need one
        identity.assume("host", "")
    for name, value in question.identities.items():
        identity.assume(name, value)


def resolve_view(http: HttpRequest) -> None:
    """Resolve the path, as Django does before it calls the view."""
    try:
        http.resolver_match = get_resolver(getattr(http, "urlconf", None)).resolve(http.path_info)
    except Resolver404:
        http.resolver_match = None


def language_of(http: HttpRequest) -> str:
    """Return the language of the response."""
    if _LOCALES in django_setting("MIDDLEWARE", ()):
        return get_language_from_request(http, check_path=True)
    return str(django_setting("LANGUAGE_CODE"))


def has_limiter() -> bool:
    """Return whether the project has our middleware, or a subclass."""
    wanted = import_string(_LIMITER)
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


def _is_known_hash(api_key: str) -> bool:
    return is_hash(api_key) and is_known_api_key(api_key)
