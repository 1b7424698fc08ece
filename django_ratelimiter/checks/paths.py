"""The checks of the paths in rules: that the middleware decides them."""

from __future__ import annotations

from typing import Final

from django.utils import translation

from ..conf import django_setting
from ..middleware import exempt_paths
from ..rules.records import RuleRecord
from ..rules.routes import is_translated, unknown_names, views
from .common import SYMPTOMS, Found, are_invalid, check, message, rules_in_force

#: The end of the URL name of the list of rules, in any AdminSite.
_LIST_OF_RULES: Final = ":django_ratelimiter_rule_changelist"

#: The error for a name in a rule that no view has, by the field.
_NOWHERE: Final = {
    "view_name": "matches no request: ROOT_URLCONF has no view named {!r}",
    "route": "matches no request: ROOT_URLCONF has no route {!r}",
    "scope": "matches no view: none has the scope {!r}",
}


@check
def check_exempt() -> Found:
    """W012: a rule is for exempt paths, or every path is exempt. Not for rules with a scope, which code may use."""
    if are_invalid("EXEMPT_PATHS") or not django_setting("ROOT_URLCONF"):
        return
    exempt = _exempt()
    slugs = [rule.slug for rule in rules_in_force() if not rule.scope and _path(rule).startswith(exempt)]
    if "/" in exempt:  # a rule for every path, too, and every later one
        slugs = ["all"]
    if slugs:
        yield message(
            "W012",
            f"These rules never apply in the middleware, because their paths are exempt: {', '.join(slugs)}.",
            "Set RATELIMITER['EXEMPT_PATHS'] to the paths that no rule applies to, without the paths of "
            f"these rules. See {SYMPTOMS}",
        )


@check
def check_admin() -> Found:
    """W021: rules may reject operators on the pages where these rules are corrected."""
    if are_invalid("EXEMPT_PATHS") or not django_setting("ROOT_URLCONF"):
        return []
    exempt = _exempt()
    lists = [view for view in views() if view.name.endswith(_LIST_OF_RULES) and not view.start.startswith(exempt)]
    enforced = [rule for rule in rules_in_force() if rule.mode == "enforce"] if lists else []
    found: dict[str, tuple[str, dict[str, None]]] = {}  # each admin once, in any language
    for view in lists:
        _, slugs = found.setdefault(view.name, (view.start, {}))
        slugs |= dict.fromkeys(rule.slug for rule in enforced if view.may_match(rule))
    return [
        message(
            "W021",
            f"The admin's pages of rules at {path} are not exempt, so these rules may reject operators there: "
            f"{', '.join(slugs)}.",
            "Name the path of this admin in RATELIMITER['EXEMPT_PATHS'], which replaces the default paths. If it "
            "is limited on purpose, silence this check: `manage.py ratelimit off` stops a rule that rejects everybody.",
        )
        for path, slugs in found.values()
        if slugs
    ]


@check
def check_targets() -> Found:
    """W019: a rule is for a view name or a route that does not exist, or for a scope that looks misspelt."""
    return [
        message(
            "W019",
            f"Rule {rule.slug} {_NOWHERE[found.field].format(found.name)}."
            + (f" Did you mean {found.close!r}?" if found.close else ""),
            "Correct the rule in the admin. View names have their namespace in front, as in reverse(); a route is "
            f"the whole pattern of urls.py, without a slash at its start. See {SYMPTOMS}",
        )
        for rule in rules_in_force()
        for found in unknown_names(rule)
        if found.close or found.field != "scope"  # any code may use a scope that no view has
    ]


def _exempt() -> tuple[str, ...]:
    """Return the prefixes of the exempt paths, in all languages of the site."""
    found = dict.fromkeys(exempt_paths(None))
    if is_translated(django_setting("ROOT_URLCONF")):
        for language, _ in django_setting("LANGUAGES"):
            with translation.override(language):
                found |= dict.fromkeys(exempt_paths(None))
    return tuple(found)


def _path(rule: RuleRecord) -> str:
    """Return the start of every path that the rule matches; empty = any."""
    return "/" + rule.path.removeprefix("^") if rule.path_kind == "route" else rule.path
