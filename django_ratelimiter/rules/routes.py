"""The views that a URL conf has, by the routes and names that rules know them by, and rules that name none of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from django.core.signals import setting_changed
from django.urls import ResolverMatch, URLResolver, get_resolver
from django.utils import translation

from ..conf import django_setting


class Target(Protocol):
    """The fields of a rule, or of its record, that name views."""

    @property
    def path_kind(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def view_name(self) -> str: ...
    @property
    def scope(self) -> str: ...


class UnknownName(NamedTuple):
    """A name in a rule that no view has.

    field: route, view_name or scope. A scope may be asked for by any code, so a rule for an unknown one may be right.
    close: the most similar name that some view has; empty = none is similar.
    """

    field: str
    name: str
    close: str


class ViewNames(NamedTuple):
    """The names that views have, by what rules call them."""

    route: frozenset[str]
    view_name: frozenset[str]
    scope: frozenset[str]


def unknown_names(rule: Target) -> list[UnknownName]:
    """Return what this rule names that no view of ROOT_URLCONF has; empty without a ROOT_URLCONF."""
    urlconf = django_setting("ROOT_URLCONF")
    named = {
        "route": rule.path if rule.path_kind == "route" else None,
        "view_name": rule.view_name or None,
        "scope": rule.scope or None,
    }
    if not urlconf or not any(name is not None for name in named.values()):
        return []
    names = _view_names(urlconf)
    return [
        UnknownName(field, name, _closest(name, getattr(names, field)))
        for field, name in named.items()
        if name is not None and name not in getattr(names, field)
    ]


def _closest(name: str, names: Collection[str]) -> str:
    """Return the most similar name, first one that differs by what stands before it, as a namespace does."""
    longer = [each for each in names if each.endswith((f":{name}", f"/{name}"))]
    return next(iter(sorted(longer) or get_close_matches(name, sorted(names), n=1, cutoff=0.75)), "")


@lru_cache(maxsize=10)
def _view_names(urlconf: Any) -> ViewNames:
    languages = [code for code, _ in django_setting("LANGUAGES")] if is_translated(urlconf) else [None]
    matches: list[ResolverMatch] = []
    for language in languages:
        with translation.override(language or translation.get_language()):
            matches += all_views(get_resolver(urlconf))
    scopes = {_scope(match.func) for match in matches}
    return ViewNames(
        frozenset(match.route or "" for match in matches),
        frozenset(match.view_name for match in matches),
        frozenset(scope for scope in scopes if scope),
    )


def _scope(view: Any) -> str | None:
    chosen = getattr(view, "initkwargs", {}).get("throttle_scope")
    found: str | None = chosen or getattr(getattr(view, "cls", None), "throttle_scope", None)
    return found


def all_views(resolver: URLResolver, route: str = "", names: tuple[str, ...] = ()) -> Iterator[ResolverMatch]:
    """Every view of the URL conf, as the match that a request for it would have."""
    for pattern in resolver.url_patterns:
        joined = route + str(pattern.pattern).removeprefix("^" if route else "")
        if isinstance(pattern, URLResolver):
            yield from all_views(pattern, joined, (*names, pattern.namespace or ""))
        else:
            yield ResolverMatch(pattern.callback, (), {}, pattern.name, namespaces=list(names), route=joined)


@lru_cache(maxsize=100)
def is_translated(urlconf: Any) -> bool:
    """Return whether paths of this site depend on the language: by `i18n_patterns`, or because they are translated.

    Asking for the language takes longer than all the rest that is asked about a path.
    """
    return any(map(_differs, get_resolver(urlconf).url_patterns))


def _differs(found: Any) -> bool:
    written = getattr(found.pattern, "_route", getattr(found.pattern, "_regex", None))
    return not isinstance(written, str) or any(map(_differs, getattr(found, "url_patterns", ())))


def _forget(**_signal: Any) -> None:
    is_translated.cache_clear()
    _view_names.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_ratelimiter.rules.routes")
