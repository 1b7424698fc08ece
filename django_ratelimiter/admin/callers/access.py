"""The admin's pages of access entries."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...models import AccessEntry
from ..formatting import period_in_words
from ..lists import NulSafeAdmin
from .forms import AccessEntryForm, NewAccessEntryForm


class InForceFilter(admin.SimpleListFilter):
    """Entries by whether they have expired."""

    title = _("when")
    parameter_name = "when"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("now", _("in force")), ("over", _("over"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        conditions = {"now": Q(expires_at=None) | Q(expires_at__gt=now), "over": Q(expires_at__lte=now)}
        return queryset.filter(conditions.get(self.value() or "", Q()))


@admin.register(AccessEntry)
class AccessEntryAdmin(NulSafeAdmin):
    """Access entries. The caller of an entry cannot be changed; add an entry for another caller."""

    form = AccessEntryForm
    radio_fields = {"action": admin.VERTICAL}  # noqa: RUF012
    list_display = ("subject", "action_word", "period", "reason")
    list_filter = ("action", "kind", InForceFilter)
    search_fields = ("value", "reason")

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None:
            kwargs["form"] = NewAccessEntryForm
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None:
            return [(None, {"fields": ("subject", "action", "expires_at", "reason")})]
        whom = {"fields": ("ip", "user", "api_key", "digest"), "description": _("Fill in exactly one.")}
        return [(None, {"fields": ("action",)}), (_("Whom"), whom), (None, {"fields": ("expires_at", "reason")})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("subject",) if obj else ()

    @admin.display(description=_("whom"), ordering="value")
    def subject(self, entry: AccessEntry) -> str:
        """Return the caller as text."""
        return entry.subject

    @admin.display(description=_("action"), ordering="action")
    def action_word(self, entry: AccessEntry) -> str:
        """Return the action."""
        return entry.action_in_words

    @admin.display(description=_("when"), ordering="expires_at")
    def period(self, entry: AccessEntry) -> str:
        """Return when the entry ends or ended."""
        return period_in_words(None, entry.expires_at)
