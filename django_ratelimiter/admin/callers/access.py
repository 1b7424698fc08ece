"""The admin's pages of access entries."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...inspection.references import PERMISSION
from ...models import AccessEntry
from ..formatting import period_in_words
from ..rules.confirmation import show_question
from .forms import AccessEntryForm, NewAccessEntryForm
from .rows import CallerRowAdmin


def _hide_caller(entry: AccessEntry) -> None:
    """Replace the value by the number of the entry; the entry cannot be saved by this reader."""
    if entry.kind != entry.Kind.DIGEST:
        entry.kind, entry.value = entry.Kind.IP, f"#{entry.pk}"


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
class AccessEntryAdmin(CallerRowAdmin):
    """Access entries. The caller of an entry cannot be changed; add an entry for another caller.

    Readers who may neither edit entries nor see names see the number of an entry instead of its caller.
    """

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

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        show_question(
            context["adminform"],
            _("Is this entry for everybody?"),
            _("It would deny every request of every address, or let all of them pass every rule."),
        )
        return super().render_change_form(request, context, *args, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("subject",) if obj else ()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> AccessEntry | None:
        entry: AccessEntry | None = super().get_object(request, object_id, from_field)
        if entry is not None and not self._names_callers(request):
            _hide_caller(entry)
        return entry

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        changelist = super().get_changelist_instance(request)
        if not self._names_callers(request):
            changelist.result_list = [*changelist.result_list]
            for entry in changelist.result_list:
                _hide_caller(entry)
        return changelist

    def get_search_fields(self, request: HttpRequest) -> Any:
        return self.search_fields if self._names_callers(request) else ("reason",)

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        """Allow no search for the start of a value, which would tell it letter by letter."""
        return not lookup.startswith("value") and super().lookup_allowed(lookup, value, request)

    def _names_callers(self, request: HttpRequest) -> bool:
        may_edit = self.has_change_permission(request) or self.has_delete_permission(request)
        return may_edit or bool(request.user.has_perm(PERMISSION))

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
