"""Rules files in the admin: the rules of a file are read-only, and all rules can be downloaded as a new file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Rule
from ..rules.files.writing import text_of_database
from ..rules.formatting import listed
from .conflicts import SEEN
from .pages import PagesAdmin

LOCKED: Final = Rule.Owner.FILE


class OwnedRules(PagesAdmin):
    """An admin of rules in which those of a file cannot be changed or deleted."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        typed = getattr(request, "ratelimiter_locked", None)  # shown again with an error, so nothing is saved
        is_free = not _is_locked(obj) or obj.pk == typed
        return super().has_change_permission(request, obj) and is_free

    def note_lock(self, request: HttpRequest, row: Model) -> None:
        if _is_locked(row) and request.POST.get(SEEN):  # missing in a form that was opened while it was locked
            request.ratelimiter_locked = row.pk  # type: ignore[attr-defined]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change and _is_locked(obj):
            raise PermissionDenied
        super().save_model(request, obj, form, change)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and not _is_locked(obj)

    def get_urls(self) -> list[URLPattern]:
        page = self.page_path("file/download/", self.download_view, "rules_download", self.has_view_permission)
        return [page, *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super().render_change_form(
            request, context | {"is_locked": _is_locked(kwargs.get("obj"))}, *args, **kwargs
        )

    def download_view(self, request: HttpRequest) -> HttpResponse:
        """Send the rules as a file. Access entries are not in it."""
        response = HttpResponse(text_of_database("yaml"), content_type="application/yaml; charset=utf-8")
        response["Content-Disposition"] = 'attachment; filename="ratelimits.yaml"'
        return response

    @admin.display(description=gettext_lazy("owner"))
    def owner_shown(self, rule: Rule) -> str:
        """Return the owner of a rule."""
        return str(rule.get_owner_display())


def owner_note(rule: Rule) -> SafeString:
    """Return the owner of a rule for the list; empty for the admin, the usual owner."""
    if rule.owner == Rule.Owner.ADMIN:
        return SafeString("")
    return format_html('<br><span class="ratelimiter-owner">{}</span>', rule.get_owner_display())


def locked_among(rules: Any) -> list[str]:
    """Return the slugs of those rules that belong to a file."""
    return [rule.slug for rule in rules if _is_locked(rule)]


def name_locked(request: HttpRequest, slugs: Sequence[str]) -> None:
    """Show a message with the rules that an action does not change, because they belong to a file."""
    if slugs:
        text = _("Rules of a file stay as they are: %(names)s. Change them there.")
        messages.warning(request, text % {"names": listed(slugs)})


def _is_locked(rule: Any) -> bool:
    return rule is not None and rule.owner == LOCKED
