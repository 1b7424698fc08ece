"""The admin's pages of tiers, assignments and access entries, and what a project puts on its own of customers."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ...conf import settings
from ...customers import row_of, value_of
from ...databases import is_beside_users
from ...inspection.caller import caller_of
from ...inspection.caller_report import report_of, state_in_words
from ...inspection.references import PERMISSION, name_of
from ...models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from ..formatting import period_in_words
from ..pages import Page, PagesAdmin
from ..rules.forms import show_question
from ..versioned import VersionedAdmin
from ..viewer import Viewer, sees_callers
from .forms import AccessEntryForm, AssignmentForm, NewAccessEntryForm, NewAssignmentForm, UserSelect
from .page import caller_view
from .rows import CallerRowAdmin, bars_of

GRANT = {
    "fields": ("multiplier", "anchor_day", ("starts_at", "ends_at")),
    "description": _("Assignments with dates take precedence. Otherwise the tier with the highest rank applies."),
}


@admin.register(Tier)
class TierAdmin(VersionedAdmin):
    """Tiers."""

    list_display = ("name", "slug", "rank", "default_for")
    search_fields = ("name", "slug")

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return what Django does; limits of a file's locked rules protect their tier."""
        *found, protected = super().get_deleted_objects(objs, request)
        locked = RuleLimit.objects.filter(tier__in=objs, rule__owner=Rule.Owner.FILE).select_related("rule", "tier")
        return *found, [*protected, *map(str, locked)]

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ("name",)}


@admin.register(TierAssignment)
class TierAssignmentAdmin(PagesAdmin, CallerRowAdmin):
    """Assignments. The subject of an assignment cannot be changed; add an assignment for another one."""

    pages = (Page("caller/", caller_view, sees_callers),)
    form = AssignmentForm
    list_display = ("subject", "tier", "times", "anchor_day", "period", "reason")
    list_filter = ("tier",)
    list_select_related = ("tier",)
    raw_id_fields = ("user",)

    class Media:
        css = {"all": ["django_ratelimiter/rules.css"]}  # noqa: RUF012

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Show the app in the admin to users who can reset counters of callers, but cannot view assignments."""
        return {**super().get_model_perms(request), "act": Viewer(request).sees_callers}

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
        kind, _colon, key = obj.partition.partition(":")
        obj.name = name_of(request.user, row_of(key) if kind == "customer" else None)  # for the message

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


def _hide_caller(entry: AccessEntry) -> None:
    """Replace the value by the number of the entry; the entry cannot be saved by this reader."""
    if entry.kind != entry.Kind.DIGEST:
        entry.kind, entry.value = entry.Kind.IP, f"#{entry.pk}"


@admin.register(AccessEntry)
class AccessEntryAdmin(CallerRowAdmin):
    """Access entries. The caller of an entry cannot be changed; add an entry for another caller.

    Readers who may neither edit entries nor see names see the number of an entry instead of its caller.
    """

    form = AccessEntryForm
    radio_fields = {"action": admin.VERTICAL}  # noqa: RUF012
    list_display = ("subject", "action_word", "period", "reason")
    list_filter = ("action", "kind")
    search_fields = ("value", "reason")

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None:
            kwargs["form"] = NewAccessEntryForm
        return super().get_form(request, obj, change=change, **kwargs)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None:
            return [(None, {"fields": ("subject", "action", "expires_at", "reason")})]
        own = ("customer",) if settings.CUSTOMER else ()
        whom = {"fields": ("ip", "user", "api_key", *own, "digest"), "description": _("Fill in exactly one.")}
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


class CustomerAdminMixin(admin.ModelAdmin):
    """Shows on the page of a customer how much of its limits is used, and leads to ours, for who may see callers."""

    class Media:
        css = {"all": ["django_ratelimiter/control.css"]}  # noqa: RUF012

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = super().get_readonly_fields(request, obj)
        may_see = obj is not None and Viewer(request, self.admin_site).sees_callers
        return (*fields, "rate_limits") if may_see else fields

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add a part of the page if the project lists its fields."""
        found, name = super().get_fieldsets(request, obj), "rate_limits"
        is_missing = name in self.get_readonly_fields(request, obj) and name not in flatten_fieldsets(found)
        return (*found, (capfirst(_("rate limits")), {"fields": (name,)})) if is_missing else found

    @admin.display(description=_("used"))
    def rate_limits(self, customer: Any) -> str:
        """Return the state, the bars and the link as HTML."""
        caller = caller_of("customer", value_of(customer))
        url = Viewer(HttpRequest(), self.admin_site).url("caller", kind=caller.kind, value=caller.value)
        report = report_of(caller)
        context = {"report": report, "state": state_in_words(report), "bars": bars_of(report.counters), "url": url}
        return render_to_string("admin/django_ratelimiter/customer_bars.html", context)
