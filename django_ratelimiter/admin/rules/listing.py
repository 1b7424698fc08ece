"""The list of rules: data that is read once for a whole page, and its filter by view."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule, RuleLimit
from ...rules.formatting import limits_in_short, limits_in_words
from ...rules.records import RuleRecord
from ...rules.routes import views, views_of
from ...rules.ruleset import RuleSet
from ...rules.stored.compiler import snapshot_of_rows
from ..formatting import split_in_words
from .targets import names_of

#: A non-breaking space.
NO_BREAK: Final = "\u00a0"


def in_words(rule: RuleRecord) -> dict[str, str]:
    """Return a rule written in code as text."""
    limits = [record.limit for records in rule.limits.values() for record in records]
    rejects_all = bool(limits) and all(limit.capacity < rule.cost for limit in limits)
    return {
        "slug": rule.slug,
        "mode": rule.mode,
        "mode_in_words": str(Rule.Mode(rule.mode).label),
        "counted_by": split_in_words(rule),
        "limits": _("rejects every request") if rejects_all else limits_in_words(rule),
    }


class RuleChangeList(ChangeList):
    """A page of rules. Their limits come from one compilation."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        compiled = RuleSet.from_snapshot(snapshot_of_rows(partial(_of_rules, [rule.slug for rule in rows])))
        words = {rule.slug: _limits(rule, list(compiled.tiers)) for rule in compiled.rules}
        for slug, reason in compiled.left_out:
            words[slug] = format_html('<span class="ratelimiter-left-out">{}</span>', _("Not in force. %s") % reason)
        for rule in rows:
            rule.in_words = words.get(rule.slug, "")  # a replica may still list a deleted rule
        self.result_list = rows


def _of_rules(slugs: list[str], rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return the rows that are needed to compile a page's rules: compiling 500 rules takes a second."""
    columns: dict[type[Model], str] = {Rule: "slug", RuleLimit: "rule__slug"}
    column = columns.get(rows.model)
    return rows.filter(**{f"{column}__in": slugs}) if column else rows


def _limits(rule: RuleRecord, tiers: list[str]) -> SafeString:
    """Return its limits as a short text without breaks inside a limit, and in full in the title attribute."""
    short = limits_in_short(rule, tiers).replace(" ", NO_BREAK)
    short = short.replace(f",{NO_BREAK}", ", ").replace(f"{NO_BREAK}+{NO_BREAK}", " + ")
    return format_html('<span title="{}">{}</span>', limits_in_words(rule), short)


class TierFilter(admin.RelatedFieldListFilter):
    """Shows the rules that have a limit for a tier, or one for all tiers that have none of their own."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.empty_value_display = format_html("{}", _("every other tier"))


class ViewFilter(admin.SimpleListFilter):
    """Shows the rules that may match a view: by its name, its route, its path or its scope, or because they match all.

    Offers the views that some rule names, and accepts any other by its name.
    """

    title = gettext_lazy("view")
    parameter_name = "view"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = {self.value() or ""}
        self._rules = list(Rule.objects.only("path_kind", "path", "view_name", "scope"))
        names = sorted(chosen | {rule.view_name for rule in self._rules})
        known = {view.name for view in views()}
        return [(name, name) for name in names if name in known]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Rule]) -> QuerySet[Rule]:
        name = self.value()
        if not name:
            return queryset
        found = [view for view in views() if view.name == name]
        rules = [
            rule.pk
            for rule in self._rules
            if any(view.may_match(rule) for view in found)
            or (rule.path_kind == "exact" and any(view.varies for view in found) and name in names_of(views_of(rule)))
        ]
        return queryset.filter(pk__in=rules)
