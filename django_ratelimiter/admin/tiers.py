"""The admin's pages of tiers and of who is in them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import Count
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Tier, TierAssignment
from .forms import NewAssignmentForm
from .numbering import NumberedAdmin


@admin.register(Tier)
class TierAdmin(NumberedAdmin):
    """Tiers."""

    list_display = ("name", "slug", "rank", "default_for", "assigned")
    search_fields = ("name", "slug")

    def get_queryset(self, request: HttpRequest) -> Any:
        tiers = super().get_queryset(request)
        return tiers.annotate(assigned=Count("assignments"))

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ("name",)}

    @admin.display(description=_("assignments"), ordering="assigned")
    def assigned(self, tier: Any) -> int:
        """How many users, groups and API keys are assigned to it."""
        return int(tier.assigned)


@admin.register(TierAssignment)
class TierAssignmentAdmin(admin.ModelAdmin):
    """Who is in which tier. The subject of an assignment stays; another subject is another assignment."""

    list_display = ("subject", "tier", "reason", "created_by", "created_at")
    list_filter = ("tier",)
    list_select_related = ("tier", "user", "group", "created_by")
    raw_id_fields = ("user",)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None:
            kwargs["form"] = NewAssignmentForm
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None:
            return [(None, {"fields": ("subject", "tier", "reason", "created_by", "created_at")})]
        subject = {
            "fields": ("user", "group", "api_key"),
            "description": _("Choose exactly one of the three."),
        }
        return [(None, {"fields": ("tier", "reason")}), (_("Who"), subject)]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("subject", "created_by", "created_at") if obj else ()

    def get_autocomplete_fields(self, request: HttpRequest) -> Any:
        """A user is searched for where the project's own admin of users can be searched, else given by key."""
        users = get_user_model()
        if not self.admin_site.is_registered(users):
            return ()
        site = self.admin_site.get_model_admin(users)
        return ("user",) if site.get_search_fields(request) and site.has_view_permission(request) else ()

    def get_search_fields(self, request: HttpRequest) -> Any:
        return (f"user__{get_user_model().USERNAME_FIELD}", "group__name", "reason")

    def save_model(self, request: HttpRequest, obj: TierAssignment, form: Any, change: bool) -> None:
        if not change:
            obj.created_by = request.user  # type: ignore[assignment]
        super().save_model(request, obj, form, change)

    @admin.display(description=_("who"))
    def subject(self, assignment: TierAssignment) -> str:
        """Who is assigned, in words."""
        return assignment.subject
