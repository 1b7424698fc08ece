"""The views that a rule matches, by name, and warnings if it may match no request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...conf import script_name
from ...middleware import exempt_paths
from ...models import Rule
from ...rules.formatting import listed
from ...rules.routes import View, unknown_names, views, views_of
from ..formatting import breakable, place_in_words, unknown_in_words


class TargetForm(forms.Form):
    """The fields of a rule that name views, while they are being entered."""

    path_kind = forms.ChoiceField(choices=Rule.PathKind.choices)
    path = forms.CharField(required=False)
    view_name = forms.CharField(required=False)
    scope = forms.CharField(required=False)


def typed_views_in_words(typed: Mapping[str, Any]) -> str:
    """Return which views a rule with these fields would match, as text; "" while they are invalid."""
    form = TargetForm(typed)
    if not form.is_valid():
        return ""
    rule = Rule(**form.cleaned_data)
    return views_in_words(rule) if rule.path or rule.path_kind == Rule.PathKind.ANY else ""


def views_in_words(rule: Rule) -> str:
    """Return how many views a rule may match, and their names: "Matches 2 views: api:export, api:list."."""
    if rule.path_kind == Rule.PathKind.ROUTE:
        rule = Rule(path_kind="route", path=rule.path.removeprefix("/"), view_name=rule.view_name, scope=rule.scope)
    names = names_of(limited(views_of(rule), rule))
    if not names:
        sentences = [_("Matches no view."), *doubts(rule)]
        if rule.path_kind in ("exact", "prefix") and not rule.view_name and not rule.scope:
            sentences.append(_("It still limits requests for this path that end in a 404."))
        return " ".join(sentences)
    text = ngettext("Matches %(count)d view: %(names)s", "Matches %(count)d views: %(names)s", len(names))
    return text % {"count": len(names), "names": f"{listed(names)}."}


def limited(found: Iterable[View], rule: Rule | None = None) -> list[View]:
    """Return the views that rules can apply to: without those on exempt paths, unless the rule has a scope."""
    exempt = exempt_paths(None) if not (rule and rule.scope) else ()
    return [view for view in found if not view.start.startswith(exempt)]


def names_of(found: Iterable[View]) -> list[str]:
    """Return the names of views, each once, in the order of the URL conf."""
    return list(dict.fromkeys(view.name for view in found))


def suggestions() -> dict[str, list[str]]:
    """Return this project's values for the fields of a rule: view names, routes, fixed paths, and scopes."""
    found = limited(views())
    return {
        "views": sorted(set(names_of(found))),
        "routes": sorted({view.route for view in found}),
        "paths": sorted({view.start for view in found}),
        "scopes": sorted({scope for view in views() for scope in view.scopes}),
    }


def doubts(rule: Rule) -> list[str]:
    """Return sentences with reasons why this rule may match no request; empty = none are known."""
    sentences = [unknown_in_words(each) for each in unknown_names(rule)]
    prefix = script_name()
    if prefix and rule.path_kind in ("exact", "prefix") and f"{rule.path}/".startswith(f"{prefix}/"):
        text = _(
            "The path begins with %(prefix)s, below which this site is mounted. Paths of rules do not contain that "
            "prefix, so this rule probably matches no request."
        )
        sentences.append(text % {"prefix": prefix})
    return sentences


def place_with_doubts(rule: Rule) -> str:
    """Return which requests a rule is for, as text, and which of its names no view has."""
    texts = {"view_name": _("no such view"), "route": _("no such route")}
    notes = [texts[each.field] for each in unknown_names(rule) if each.field in texts]
    place = breakable(place_in_words(rule))
    if not notes:
        return place
    return format_html('{} <span class="ratelimiter-left-out">({})</span>', place, ", ".join(notes))
