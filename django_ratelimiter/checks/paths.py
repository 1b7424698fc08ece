"""The check of what rules are for: that the middleware looks at it."""

from __future__ import annotations

from django.core import checks
from django.core.checks import CheckMessage
from django.urls import get_script_prefix

from ..conf import django_setting
from ..middleware import exempt_paths
from ..rules.ruleset import RuleRecord
from .common import TAG, are_wrong, rules_in_force


def check_exempt(**_kwargs: object) -> list[CheckMessage]:
    """W012: a rule is for paths that are exempt from all rules. One with a scope is met where code asks for it."""
    if are_wrong("EXEMPT_PATHS") or not django_setting("ROOT_URLCONF"):
        return []
    exempt = exempt_paths(None)
    slugs = [rule.slug for rule in rules_in_force() if not rule.scope and _path(rule).startswith(exempt)]
    if not slugs:
        return []
    return [
        checks.Warning(
            f"The middleware leaves alone the paths that these rules are for: {', '.join(slugs)}.",
            hint="Name in RATELIMITER['EXEMPT_PATHS'] what no rule shall touch, and these paths not.",
            id=f"{TAG}.W012",
        )
    ]


def _path(rule: RuleRecord) -> str:
    """How every path begins that the rule is for; empty = in any way."""
    return get_script_prefix() + rule.path.removeprefix("^") if rule.path_kind == "route" else rule.path
