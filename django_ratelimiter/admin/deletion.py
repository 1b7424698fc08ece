"""The rows that are deleted with rules and tiers: shown as in Django, with a fixed number of queries.

Assignments are counted instead of loaded, because there may be a million. Django deletes them in the database if
no receiver of their signals is connected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.contrib.admin.utils import NestedObjects, quote
from django.db import router
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.text import capfirst

from ..models import Rule, RuleLimit, Tier, TierAssignment


class _OtherObjects(NestedObjects):
    """Collects all rows that are also deleted, except for assignments."""

    def related_objects(self, related_model: Any, related_fields: Any, objs: Any) -> Any:
        found = super().related_objects(related_model, related_fields, objs)
        if related_model is RuleLimit:  # each line contains the rule and the tier
            return found.select_related("rule", "tier")
        return found.none() if related_model is TierAssignment else found


def deleted_with(
    deleted: Sequence[Rule] | Sequence[Tier], request: HttpRequest, site: AdminSite
) -> tuple[list[Any], dict[Any, int], set[Any], list[Any]]:
    """Return the same as `ModelAdmin.get_deleted_objects`: lines to show, numbers by kind, missing permissions, and
    rows that protect the deleted ones.
    """
    using = router.db_for_write(Tier)
    collector = _OtherObjects(using=using, origin=deleted)
    collector.collect(deleted)
    tiers = [row for row in deleted if isinstance(row, Tier)]
    assignments = TierAssignment.objects.using(using).filter(tier__in=tiers).count()
    rows = [row for of_kind in collector.model_objs.values() for row in of_kind]
    missing = {row._meta.verbose_name for row in rows if not _may_delete(type(row), row, request, site)}
    lines = collector.nested(lambda row: _line(row, site))
    of_kinds: dict[Any, Any] = dict(collector.model_objs)  # by model; the type stubs say by name
    numbers = {model._meta.verbose_name_plural: len(rows) for model, rows in of_kinds.items()}
    if assignments:
        kind = TierAssignment._meta.verbose_name_plural
        lines.append(f"{number_format(assignments)} {kind}")
        numbers[kind] = assignments
        if not _may_delete(TierAssignment, None, request, site):
            missing.add(TierAssignment._meta.verbose_name)
    protected = [*collector.protected, *_locked_limits(collector)]
    return lines, numbers, missing, [_line(row, site) for row in protected]


def _locked_limits(collector: _OtherObjects) -> list[RuleLimit]:
    """Return limits of a file's locked rules that are not deleted themselves: they protect their tier."""
    found: dict[Any, Any] = dict(collector.model_objs)
    rules = {rule.pk for rule in found.get(Rule, ())}
    limits = [row for row in found.get(RuleLimit, ()) if row.rule_id not in rules and row.rule.owner == Rule.Owner.FILE]
    return sorted(limits, key=lambda row: row.pk)


def _may_delete(model: Any, row: Any, request: HttpRequest, site: AdminSite) -> bool:
    """Return whether the user may delete it. row: `None` = any row. No permission is needed without an admin."""
    return not site.is_registered(model) or site.get_model_admin(model).has_delete_permission(request, row)


def _line(row: Any, site: AdminSite) -> Any:
    """Return kind and name of a row, with a link to its page if there is one."""
    kind = capfirst(row._meta.verbose_name)
    try:
        name = f"{site.name}:{row._meta.app_label}_{row._meta.model_name}_change"
        url = reverse(name, args=[quote(row.pk)])
    except NoReverseMatch:
        return f"{kind}: {row}"
    return format_html('{}: <a href="{}">{}</a>', kind, url, row)
