"""The permissions for restoring a version: to enforce rules, and those for each change that it makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.contrib.auth import get_permission_codename
from django.contrib.auth.models import Permission
from django.http import HttpRequest

from ...models import AccessEntry, Rule, RuleLimit, Tier
from ...rules.stored.history.changes import Change

PUBLISH: Final = "django_ratelimiter.publish_rule"

_MODELS: Final = {"rule": Rule, "tier": Tier, "access": AccessEntry}
_ACTIONS: Final = {"added": "add", "changed": "change", "removed": "delete"}


def missing_permissions(request: HttpRequest, changes: Iterable[Change]) -> list[str]:
    """Return the names of the permissions that this user lacks for these changes, as in Django's lists."""
    needed = {codename for change in changes for codename in _needed(change)}
    lacking = sorted(name for name in needed if not request.user.has_perm(f"{Rule._meta.app_label}.{name}"))
    if not lacking:
        return []
    rows = Permission.objects.filter(content_type__app_label=Rule._meta.app_label, codename__in=lacking)
    return [row.name for row in rows.order_by("name")] or lacking


def _needed(change: Change) -> set[str]:
    if change.subject == "enforcement":  # it is never restored
        return set()
    action = _ACTIONS[change.kind]
    needed = {get_permission_codename(action, _MODELS[change.subject]._meta)}
    limits = [field for field in change.fields if field.name == "limits"]
    if change.subject == "rule" and change.kind != "removed" and limits:  # a deleted rule's limits are deleted with it
        needed.add(get_permission_codename("add" if change.kind == "added" else "change", RuleLimit._meta))
    return needed
