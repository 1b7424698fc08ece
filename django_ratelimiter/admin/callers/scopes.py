"""Scopes that views ask for: a rule for another one rejects requests of tasks, commands and other code alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.urls import get_resolver

from ...conf import django_setting
from ...forecast.targets import scopes_of
from ...rules.records import RuleRecord
from ...rules.routes import all_views


def for_no_view(rules: Iterable[RuleRecord]) -> set[str]:
    """Return the slugs of those for a scope that no view of ROOT_URLCONF names, by its decorators or its class.

    Code within a view may ask for any scope all the same.
    """
    scopes, urlconf = {rule.slug: rule.scope for rule in rules if rule.scope}, django_setting("ROOT_URLCONF")
    if not scopes or not urlconf:
        return set()
    named = {scope for match in all_views(get_resolver(urlconf)) for scope in _named_by(match.func)}
    return {slug for slug, scope in scopes.items() if scope not in named}


def _named_by(view: Any) -> Iterator[str]:
    """Return the scopes of a view, and those of the methods of its class."""
    made_of = getattr(view, "cls", None) or getattr(view, "view_class", None)
    yield from filter(None, scopes_of(view))
    for method in getattr(made_of, "http_method_names", ()):
        yield from getattr(getattr(made_of, method, None), "ratelimit_scopes", ())
    if scope := getattr(made_of, "throttle_scope", None):
        yield scope
