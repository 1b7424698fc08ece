"""Scopes that views ask for: a rule for another one rejects requests of tasks, commands and other code alone."""

from __future__ import annotations

from collections.abc import Iterable

from ..conf import django_setting
from ..rules.records import RuleRecord
from ..rules.routes import views


def for_no_view(rules: Iterable[RuleRecord]) -> set[str]:
    """Return the slugs of those for a scope that no view of ROOT_URLCONF names, by its decorators or its class.

    Code within a view may ask for any scope all the same.
    """
    if not django_setting("ROOT_URLCONF"):
        return set()
    named = {scope for view in views() for scope in view.scopes}
    return {rule.slug for rule in rules if rule.scope and rule.scope not in named}
