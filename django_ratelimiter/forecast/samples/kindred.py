"""Finds the rule whose samples include the requests that a new rule would match."""

from __future__ import annotations

from collections.abc import Iterable

from ...models import Rule
from ...rules.routes import views_of

#: The fields that must be equal: which requests match, and what distinguishes callers.
_ALIKE = ("methods", "scope", "partition_by", "missing_partition")


def recorded_by(new: Rule, rules: Iterable[Rule]) -> Rule | None:
    """Return the first of these rules that matches the requests of the new one and counts by the same, else `None`.

    Either for every path, or for the same views. Samples of other rules include other requests as well.
    """
    return next((rule for rule in rules if _is_alike(new, rule)), None)


def _is_alike(new: Rule, rule: Rule) -> bool:
    if any(getattr(new, name) != getattr(rule, name) for name in _ALIKE):
        return False
    if all(getattr(new, name) == getattr(rule, name) for name in ("path_kind", "path", "view_name")):
        return True
    if "exact" in (new.path_kind, rule.path_kind) or "prefix" in (new.path_kind, rule.path_kind):
        return False  # only some of a view's paths
    found = views_of(new)
    return bool(found) and set(found) == set(views_of(rule))
