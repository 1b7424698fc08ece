"""The admin's pages of tiers and assignments."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ...databases import is_beside_users
from ...models import Rule, RuleLimit, Tier, TierAssignment
from ..formatting import period_in_words
from ..pages import Page, PagesAdmin
from ..versioned import VersionedAdmin
from .forms import AssignmentForm, NewAssignmentForm, UserSelect
from .page import caller_view, sees_callers
from .rows import CallerRowAdmin

GRANT = {
    "fields": ("multiplier", "anchor_day", ("starts_at", "ends_at")),
    "description": _("Assignments with dates take precedence. Otherwise the tier with the highest rank applies."),
}


class PeriodFilter(admin.SimpleListFilter):
    """Filters assignments that have not started, are active, or have ended."""

    title = _("when")
    parameter_name = "when"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("now", _("in force")), ("later", _("to come")), ("over", _("over"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        begun = Q(starts_at=None) | Q(starts_at__lte=now)
        not_over = Q(ends_at=None) | Q(ends_at__gt=now)
        conditions = {"now": begun & not_over, "later": Q(starts_at__gt=now), "over": Q(ends_at__lte=now)}
        return queryset.filter(conditions.get(self.value() or "", Q()))


@admin.register(Tier)
class TierAdmin(VersionedAdmin):
    """Tiers."""

    list_display = ("name", "slug", "rank", "default_for", "assigned")
    search_fields = ("name", "slug")

    def get_queryset(self, request: HttpRequest) -> Any:
        tiers = super().get_queryset(request)
        return tiers.annotate(assigned=Count("assignments"))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what Django does; limits of a file's locked rules protect their tier."""
        *found, protected = super().get_deleted_objects(objs, request)
        locked = RuleLimit.objects.filter(tier__in=objs, rule__owner=Rule.Owner.FILE).select_related("rule", "tier")
        return *found, [*protected, *map(str, locked)]

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ("name",)}

    @admin.display(description=_("assignments"), ordering="assigned")
    def assigned(self, tier: Any) -> int:
        """Return the number of assignments."""
        return int(tier.assigned)


@admin.register(TierAssignment)
class TierAssignmentAdmin(PagesAdmin, CallerRowAdmin):
    """Assignments. The subject of an assignment cannot be changed; add an assignment for another one."""

    pages = (Page("caller/", "caller", caller_view, sees_callers),)
    form = AssignmentForm
    list_display = ("subject", "tier", "times", "anchor_day", "period", "reason")
    list_filter = ("tier", PeriodFilter)
    list_select_related = ("tier",)
    raw_id_fields = ("user",)

    class Media:
        css = {"all": ["django_ratelimiter/rules.css"]}  # noqa: RUF012

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Show the app in the admin to users who can reset counters of callers, but cannot view assignments."""
        return {**super().get_model_perms(request), "act": sees_callers(self, request)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[TierAssignment]:
        # Not joined: users may be in another database.
        return super().get_queryset(request).prefetch_related("user", "group")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Ignore values in the URL that are not valid primary keys: the widgets would raise an error."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        return {name: value for name, value in initial.items() if _may_be(self.opts, name, value)}

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None:
            kwargs["form"] = NewAssignmentForm
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None:
            facts = {"fields": ("subject", "tier", "reason", "created_by", "created_at")}
            return [(None, facts), (_("How much and when"), GRANT)]
        subject = {
            "fields": ("user", "group", "api_key", "partition"),
            "description": _("Choose exactly one of the four."),
        }
        return [(None, {"fields": ("tier", "reason")}), (_("Who"), subject), (_("How much and when"), GRANT)]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ("subject", "created_by", "created_at") if obj else ()

    def get_autocomplete_fields(self, request: HttpRequest) -> Any:
        """Use a search for users if the project's own admin of users supports it, else the primary key."""
        users = get_user_model()
        if not self.admin_site.is_registered(users):
            return ()
        site = self.admin_site.get_model_admin(users)
        return ("user",) if site.get_search_fields(request) and site.has_view_permission(request) else ()

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = UserSelect(db_field, self.admin_site, using=kwargs.get("using"))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_search_fields(self, request: HttpRequest) -> Any:
        people = (f"user__{get_user_model().USERNAME_FIELD}", "group__name")
        return (*(people if is_beside_users(TierAssignment) else ()), "partition", "reason")

    def save_model(self, request: HttpRequest, obj: TierAssignment, form: Any, change: bool) -> None:
        if not change and is_beside_users(TierAssignment):
            obj.created_by_id = request.user.pk
        super().save_model(request, obj, form, change)

    @admin.display(description=_("multiplier"), ordering="multiplier")
    def times(self, assignment: TierAssignment) -> str:
        """Return the multiplier, empty for 1."""
        return "" if assignment.multiplier == 1 else f"{assignment.multiplier.normalize():f}"

    @admin.display(description=_("when"), ordering="ends_at")
    def period(self, assignment: TierAssignment) -> str:
        """Return when the assignment begins and ends."""
        return period_in_words(assignment.starts_at, assignment.ends_at)

    @admin.display(description=_("who"))
    def subject(self, assignment: TierAssignment) -> str:
        """Return the subject as text."""
        return assignment.subject


def _may_be(opts: Any, name: str, value: Any) -> bool:
    """Return whether this can be a field's initial value: for a relation, a valid primary key."""
    field = next((each for each in opts.fields if each.name == name), None)
    if field is None or not field.is_relation:
        return True
    try:
        return bool(field.related_model._default_manager.filter(pk=value).exists())
    except (TypeError, ValueError, OverflowError, ValidationError):
        return False
