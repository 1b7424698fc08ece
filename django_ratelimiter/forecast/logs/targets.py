"""The targets of a log's requests: from path and method to the calls of the limiter, and the rules that they match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from django.http import HttpRequest
from django.urls import get_script_prefix
from django.utils import translation
from django.utils.encoding import repercent_broken_unicode

from ...conf import django_setting
from ...inspection.entry_points import has_limiter, language_of, resolve_view
from ...limiter.charges import Only
from ...middleware import ASKED_BY_GATEWAYS, exemption
from ...rules.records import Facts, RuleRecord
from ...rules.routes import is_translated
from ...rules.ruleset import RuleIndex
from ..code import Asked, asked_by

#: Maximum number of cached methods and paths with their targets. About 1 KB each.
MAX_TARGETS: Final = 20_000


class Plan:
    """How the requests to some targets count for the rules at a place. cost: units; `None` = those of each rule."""

    __slots__ = ("cost", "place")

    def __init__(self, place: int, cost: int | None) -> None:
        self.place, self.cost = place, cost


class LoggedTarget(NamedTuple):
    """The target of a method and a path. plans: of the rules that match; each plan is one object for all targets.

    captured: the parts of the path.
    """

    plans: tuple[Plan, ...]
    captured: Mapping[str, Any]


#: The target of what a server answers itself: HTTP/2's preface, tunnels, `OPTIONS *`, and what is no request.
UNREACHED: Final = LoggedTarget((), {})


def target_finder(rules: Sequence[RuleRecord]) -> Callable[[str, str], LoggedTarget]:
    """Return what finds the target of a method and a path, of MAX_TARGETS in a cache. rules: their conditions count."""
    root = get_script_prefix().rstrip("/")
    in_middleware = has_limiter()
    translated = is_translated(django_setting("ROOT_URLCONF"))
    # The index knows rules by their slugs, and those that are off match nothing.
    index = RuleIndex([replace(rule, slug=str(place), mode="enforce") for place, rule in enumerate(rules)])
    plans: dict[tuple[int, int | None], Plan] = {}

    @lru_cache(maxsize=MAX_TARGETS)
    def find(method: str, path: str) -> LoggedTarget:
        if method in ("", "PRI", "CONNECT") or not (path.startswith("/") or "://" in path):
            return UNREACHED
        http = _request(method, path, root)
        with translation.override(language_of(http)) if translated else nullcontext():
            calls = _calls(http, in_middleware)
        found: dict[int, Plan] = {}
        for facts, asked in calls:
            for rule in index.match(facts):
                if not isinstance(facts.scope, Only) or rule.scope == facts.scope:
                    key = int(rule.slug), asked.cost
                    found.setdefault(key[0], plans.setdefault(key, Plan(*key)))
        match = http.resolver_match
        return LoggedTarget(tuple(found.values()), match.kwargs if match else {})

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


def _calls(http: HttpRequest, in_middleware: bool) -> list[tuple[Facts, Asked]]:
    """Return the calls of the limiter for a request, in the order of its entry points."""
    resolve_view(http)
    match = http.resolver_match
    view = match.func if match else None
    if hasattr(view, ASKED_BY_GATEWAYS):
        return []
    route, name = (match.route or "", match.view_name or "") if match else ("", "")
    asked = [Asked()] if in_middleware and not exemption(http) else []
    asked += asked_by(view, http.method or "") if match else ()
    path = http.path_info or "/"
    return [(Facts(http.method or "", path, route, name, each.scope or ""), each) for each in asked]
