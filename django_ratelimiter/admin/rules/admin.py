"""The admin's pages of rules, with their limits, and their list."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule, RuleLimit
from ...rules import cache
from ...rules import inline as code
from ...rules.formatting import limits_in_short, limits_in_words
from ...rules.records import RuleRecord
from ...rules.routes import views, views_of
from ...rules.ruleset import RuleSet
from ...rules.stored.compiler import reasons_against, snapshot_of_rows
from ..explain import explain_view
from ..forecast import ForecastPanel
from ..formatting import split_in_words
from ..history import history_bring_back_view, history_version_view, history_view, offered_undo, rule_history_view
from ..overview.search import search_view
from ..pages import Page, PagesAdmin
from ..viewer import Viewer
from .actions import (
    MAY_SWITCH,
    RuleActions,
    enforcement_view,
    is_locked,
    locked_among,
    name_locked,
    rules_download_view,
)
from .forms import RuleForm, show_question
from .limits import LimitsInWords, RuleLimitInline, limits_context, live_preview
from .presets import PrefilledAdmin, presets
from .targets import TargetForm, doubts, names_of, place_with_doubts, suggestions, typed_views_in_words, views_in_words

#: In the order of an operator's thoughts. The limits follow the fieldset with this class; see the page's template.
FIELDSETS: Final[Any] = (
    (None, {"fields": ("name", "slug", "description")}),
    (
        gettext_lazy("What it applies to"),
        {
            "fields": (("path_kind", "path"), "view_name", "methods", "scope", "matching_views"),
            "description": gettext_lazy("The rule applies to requests that match all of these. Empty matches all."),
        },
    ),
    (
        gettext_lazy("Who and what is counted"),
        {"fields": ("partition_by", "missing_partition", "charge_when"), "classes": ("ratelimiter-above-limits",)},
    ),
    (gettext_lazy("What happens then"), {"fields": ("mode", "message", "failure_policy")}),
    (
        gettext_lazy("Expert options"),
        {
            "fields": ("cost", "count_refusals", "exact_usage", "sync_interval_ms", "priority", "owner"),
            "classes": ("collapse",),
            "description": gettext_lazy(
                "Most rules need none of these. The page “Rules and tiers” of the documentation explains each."
            ),
        },
    ),
)

#: Fields with lists, and the methods that show them as text.
_IN_WORDS: Final = {"partition_by": "counted_by", "methods": "methods_shown"}


#: Shown by admin sites that have our rules and no template of their own; see there.
HOME_TEMPLATE: Final = "admin/django_ratelimiter/index.html"


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


def rule_sentences_view(_page_of: Any, request: HttpRequest) -> JsonResponse:
    """Return sentences about the entered limit, or its errors. Saves nothing."""
    return JsonResponse({"text": live_preview(request.GET)})


def rule_views_view(_page_of: Any, request: HttpRequest) -> JsonResponse:
    """Return the views that the entered rule would match, as text. Saves nothing."""
    return JsonResponse({"text": typed_views_in_words(request.GET)})


def _may_edit(rules: Any, request: HttpRequest) -> bool:
    return bool(rules.has_change_permission(request) or rules.has_add_permission(request))


def _may_view(rules: Any, request: HttpRequest) -> bool:
    return bool(rules.has_view_permission(request))


@admin.register(Rule)
class RuleAdmin(PagesAdmin, PrefilledAdmin, RuleActions, ForecastPanel):
    """Rules. Those of a file cannot be changed or deleted."""

    pages = (
        Page("explain/", explain_view, _may_view),
        Page("search/", search_view, lambda _rules, request: Viewer(request).searches),
        Page("enforcement/", enforcement_view, MAY_SWITCH),
        Page("history/", history_view, _may_view),
        Page("history/<str:key>/", history_version_view, _may_view),
        Page("history/<str:key>/bring-back/", history_bring_back_view, _may_view),
        Page("file/download/", rules_download_view, _may_view),
        Page("sentences/", rule_sentences_view, _may_edit),
        Page("views/", rule_views_view, _may_edit),
    )
    form = RuleForm
    inlines = (RuleLimitInline,)
    radio_fields = {"mode": admin.HORIZONTAL}  # noqa: RUF012
    readonly_fields = ("matching_views", "owner")
    list_display = ("name", "mode_shown", "place", "counted_by", "limits")
    list_filter = ("mode", ViewFilter, ("limits__tier", TierFilter), "owner")
    search_fields = ("name", "slug", "path", "view_name", "scope", "description")
    fieldsets = FIELDSETS

    class Media:
        css = {"all": [f"django_ratelimiter/{name}.css" for name in ("control", "rules", "forecast")]}  # noqa: RUF012
        js = ("django_ratelimiter/rules.js",)

    def __init__(self, model: type[Rule], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        # A template "admin/index.html" of ours would only be found if the app is listed before django.contrib.admin.
        if admin_site.index_template is None:
            admin_site.index_template = HOME_TEMPLATE

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Show the app in the admin to users who can stop enforcement, but cannot view rules."""
        return {**super().get_model_perms(request), "switch": Viewer(request).may(MAY_SWITCH)}

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and (obj is None or not is_locked(obj))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or not is_locked(obj))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RuleChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the rules, below them those written in code, which are read-only, and a link to undo a late change."""
        viewer = Viewer(request, self.admin_site)
        context = {
            "rules_in_code": [in_words(rule) for rule in code.registered()],
            "presets": presets,
            "may_switch": viewer.may(MAY_SWITCH),
            "enforced": cache.enforcement_enabled(),
            "undo": offered_undo(viewer) if request.method == "GET" else None,
        }
        return super().changelist_view(request, context | (extra_context or {}))

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a rule's own history; Django's lists fields without their old and new values."""
        rule = self.get_object(request, unquote(object_id))
        if rule is None:
            return super().history_view(request, object_id)  # it shows a message
        if not self.has_view_or_change_permission(request, rule):
            raise PermissionDenied
        return rule_history_view(self, request, rule, extra_context)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        name_locked(request, locked_among(objs))  # Django's page only says that a permission is missing
        return super().get_deleted_objects(objs, request)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the fieldsets; on a read-only page with lists as text, which Django would show as JSON."""
        fieldsets = super().get_fieldsets(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fieldsets
        return [
            (title, {**options, "fields": [_IN_WORDS.get(str(name), name) for name in options["fields"]]})
            for title, options in fieldsets
        ]

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the limits: as a form, or as text for users who may neither change nor add them."""
        may_edit = self.has_change_permission(request, obj) if obj else self.has_add_permission(request)
        limits = RuleLimitInline(self.model, self.admin_site)
        may_edit = may_edit and (limits.has_change_permission(request, obj) or limits.has_add_permission(request, obj))
        return self.inlines if may_edit else (LimitsInWords,)

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ("name",)}

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        show_question(context["adminform"])
        form = context["adminform"].form
        if TargetForm.base_fields.keys() <= form.fields.keys():  # as in the form, which may be a preset, or not valid
            form.instance.typed_views = typed_views_in_words(
                {name: form[name].value() for name in TargetForm.base_fields}
            )
        rule = kwargs.get("obj")
        limits = RuleLimitInline(self.model, self.admin_site)
        context |= limits_context() | {"suggestions": suggestions()}
        context["is_locked"] = is_locked(rule)
        if kwargs.get("add") and request.method == "GET":
            context |= {"is_filled": True} if request.GET.keys() & {"slug", "copy"} else {"presets": presets}
        may_change = self.has_change_permission(request, rule) if rule else True
        may_edit = limits.has_change_permission(request, rule) if rule else limits.has_add_permission(request, rule)
        context["limits_locked"] = may_change and not may_edit
        if rule and request.method == "GET":  # after a POST with errors it contains unsaved values
            context["reasons_against"] = reasons_against(rule)
            context["undo"] = offered_undo(Viewer(request, self.admin_site), rule.slug)
        return super().render_change_form(request, context, *args, **kwargs)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save it, and say why the rule may match no request."""
        super().save_related(request, form, formsets, change)
        if not form.instance.limits.exists():
            messages.warning(request, _("This rule has no limits, so it applies to nobody yet."))
            return
        for doubt in doubts(form.instance):
            messages.warning(request, doubt)

    @admin.display(description=gettext_lazy("Views that match"))
    def matching_views(self, rule: Rule) -> str:
        """Return the views that the rule in the form matches. The page's script updates them while it is edited."""
        text = views_in_words(rule) if (typed := getattr(rule, "typed_views", None)) is None else typed
        return format_html('<span class="ratelimiter-views" aria-live="polite">{}</span>', text)

    @admin.display(description=gettext_lazy("mode"), ordering="mode")
    def mode_shown(self, rule: Rule) -> str:
        """Return its mode, with a CSS class for the list, and its owner if that is not the admin."""
        badge = format_html(
            '<span class="ratelimiter-badge ratelimiter-{}">{}</span>', rule.mode, rule.get_mode_display()
        )
        if rule.owner == Rule.Owner.ADMIN:  # the usual one
            return badge
        return badge + format_html('<br><span class="ratelimiter-owner">{}</span>', rule.get_owner_display())

    @admin.display(description=gettext_lazy("applies to"))
    def place(self, rule: Rule) -> str:
        """Return which requests it matches, as text."""
        return place_with_doubts(rule)

    @admin.display(description=gettext_lazy("counted by"))
    def counted_by(self, rule: Rule) -> str:
        """Return what it is counted by, as text."""
        return split_in_words(rule)

    @admin.display(description=gettext_lazy("methods"))
    def methods_shown(self, rule: Rule) -> str:
        """Return its methods; empty = all, as the form says above."""
        return ", ".join(map(str, rule.methods)) or str(self.get_empty_value_display())

    @admin.display(description=gettext_lazy("limits"))
    def limits(self, rule: Any) -> Any:
        """Return its limits as a short text, or why it cannot be used."""
        return rule.in_words
