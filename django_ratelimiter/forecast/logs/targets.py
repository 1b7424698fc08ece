"""The targets of a log's requests: from path and method to route, view and entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from django.http import HttpRequest
from django.urls import get_script_prefix
from django.utils import translation
from django.utils.encoding import repercent_broken_unicode

from ...conf import django_setting
from ...inspection.request import has_limiter, language_of, resolve_view
from ...limiter.charges import Only, Reach
from ...middleware import decides_later, exemption
from ...rules.records import Facts
from ...rules.routes import is_translated

#: Maximum number of cached methods and paths with their targets. About 1 KB each.
MAX_TARGETS: Final = 20_000

#: The name of requests without a view in reports.
NO_VIEW: Final = "(no view)"


class EntryCall(NamedTuple):
    """One call of the limiter for a request, by an entry point. before_authentication: the user is not known yet."""

    facts: Facts
    reach: Reach
    before_authentication: bool


class LoggedTarget(NamedTuple):
    """The target of a method and a path.

    view: its name in reports. captured: the parts of the path. calls: in the order of the entry points; empty = no rule
    applies. has_inline: the view has rates in its code.
    """

    view: str
    captured: Mapping[str, Any]
    calls: tuple[EntryCall, ...]
    has_inline: bool


#: The target of what a server answers itself: HTTP/2's preface, tunnels, `OPTIONS *`, and what is no request.
UNREACHED: Final = LoggedTarget("", {}, (), has_inline=False)


def target_finder(met: Callable[[EntryCall], object] = id) -> Callable[[str, str], LoggedTarget]:
    """Return what finds the target of a method and a path, of MAX_TARGETS in a cache. met: gets the calls of others."""
    root = get_script_prefix().rstrip("/")
    in_middleware = has_limiter()
    translated = is_translated(django_setting("ROOT_URLCONF"))

    @lru_cache(maxsize=MAX_TARGETS)
    def find(method: str, path: str) -> LoggedTarget:
        if method in ("", "PRI", "CONNECT") or not (path.startswith("/") or "://" in path):
            return UNREACHED
        http = _request(method, path, root)
        with translation.override(language_of(http)) if translated else nullcontext():
            target = _target(http, in_middleware)
        for call in target.calls:
            met(call)
        return target

    return find


def _request(method: str, path: str, root: str) -> HttpRequest:
    if not path.startswith("/"):  # the form for proxies: http://host/path
        path = "/" + path.partition("://")[2].partition("/")[2]
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    http = HttpRequest()
    http.method = method.upper()
    http.path = http.path_info = repercent_broken_unicode(unquote_to_bytes(path)).decode() if "%" in path else path
    if method == "OPTIONS":  # nearly all are preflights of browsers, and a log does not distinguish others
        http.META |= {"HTTP_ORIGIN": "null", "HTTP_ACCESS_CONTROL_REQUEST_METHOD": "GET"}
    return http


def _target(http: HttpRequest, in_middleware: bool) -> LoggedTarget:
    resolve_view(http)
    match = http.resolver_match
    route, name = (match.route or "", match.view_name or "") if match else ("", "")
    view = match.func if match else None
    calls = []
    if in_middleware and not exemption(http):
        calls.append(("", decides_later(view)))
    if match is not None:
        calls += [(scope or "", False) for scope in scopes_of(view)]
    return LoggedTarget(
        name or route or NO_VIEW,
        match.kwargs if match else {},
        tuple(
            EntryCall(
                Facts(http.method or "", http.path_info or "/", route, name, scope),
                "scope" if isinstance(scope, Only) else "request",
                is_early,
            )
            for scope, is_early in calls
        ),
        getattr(view, "ratelimits", 0) > len(getattr(view, "ratelimit_scopes", ())),
    )


def scopes_of(view: Any) -> list[str | None]:
    """Return the scopes of the view, each once; `None` = a throttle without one."""
    found: list[str | None] = list(getattr(view, "ratelimit_scopes", ()))
    if decides_later(view):
        scope = getattr(view, "initkwargs", {}).get("throttle_scope") or getattr(view.cls, "throttle_scope", None)
        found.append(scope or (None if not found else found[0]))
    return list(dict.fromkeys(found))
