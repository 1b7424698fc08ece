"""The admin's pages of rules, with their limits."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule
from ...rules import inline as code
from ...rules.formatting import limits_in_words
from ...rules.ruleset import RuleSet
from ...rules.stored.compiler import reasons_against, snapshot_of_rows
from ..enforcement import EnforcementSwitch
from ..explain import ExplainPage
from ..files import OwnedRules, locked_among, name_locked, owner_note
from ..forecast.panel import ForecastPanel
from ..formatting import split_in_words
from ..history.pages import HistoryPages
from ..lists import is_unchanged
from ..overview.views import OverviewSearch
from ..versioned import VersionedAdmin
from ..viewer import VIEW_USAGE
from .actions import RuleActions
from .confirmation import ModeWidget, may_enforce, show_question
from .forms import RuleForm
from .limits import LimitsInWords, RuleLimitInline, limits_context, live_preview, may_edit_limits
from .listing import CodeRule, RuleChangeList, TierFilter, ViewFilter
from .presets import PRESETS, PrefilledAdmin
from .targets import TargetForm, doubts, place_with_doubts, suggestions, typed_views_in_words, views_in_words

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
            "fields": ("cost", "count_refusals", "sync_interval_ms", "priority", "owner_shown"),
            "classes": ("collapse",),
            "description": gettext_lazy(
                "Most rules need none of these. The page “Rules and tiers” of the documentation explains each."
            ),
        },
    ),
)

#: Fields with lists, and the methods that show them as text.
_IN_WORDS: Final = {"partition_by": "counted_by", "methods": "methods_shown"}


@admin.register(Rule)
class RuleAdmin(
    OwnedRules,
    PrefilledAdmin,
    HistoryPages,
    RuleActions,
    EnforcementSwitch,
    ExplainPage,
    OverviewSearch,
    ForecastPanel,
    VersionedAdmin,
):
    """Rules."""

    form = RuleForm
    inlines = (RuleLimitInline,)
    radio_fields = {"mode": admin.HORIZONTAL}  # noqa: RUF012
    readonly_fields = ("matching_views", "owner_shown")
    list_display = ("name", "mode_shown", "place", "counted_by", "limits", "today")
    list_filter = ("mode", ViewFilter, ("limits__tier", TierFilter), "owner")
    search_fields = ("name", "slug", "path", "view_name", "scope", "description")
    fieldsets = FIELDSETS

    class Media:
        css = {"all": [f"django_ratelimiter/{name}.css" for name in ("control", "rules", "forecast")]}  # noqa: RUF012
        js = tuple(f"django_ratelimiter/{name}.js" for name in ("rules", "rule_views", "rule_list", "forecast"))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RuleChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Show the rules, and below them those written in code, which are read-only."""
        context = {"rules_in_code": [CodeRule.of(rule) for rule in code.registered()], "presets": PRESETS}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_list_display(self, request: HttpRequest) -> Any:
        """Show today's usage only with the permission to view reports."""
        shown = super().get_list_display(request)
        return shown if request.user.has_perm(VIEW_USAGE) else [name for name in shown if name != "today"]

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

    def get_urls(self) -> list[URLPattern]:
        own = [
            self.page_path("sentences/", self.sentences_view, "rule_sentences", self._may_edit),
            self.page_path("views/", self.views_view, "rule_views", self._may_edit),
        ]
        return [*own, *super().get_urls()]

    def sentences_view(self, request: HttpRequest) -> JsonResponse:
        """Return sentences about the entered limit, and its errors by field. Saves nothing."""
        return JsonResponse(live_preview(request.GET))

    def views_view(self, request: HttpRequest) -> JsonResponse:
        """Return the views that the entered rule would match, as text. Saves nothing."""
        return JsonResponse({"views": typed_views_in_words(request.GET)})

    def _may_edit(self, request: HttpRequest) -> bool:
        return self.has_change_permission(request) or self.has_add_permission(request)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.may_enforce = may_enforce(request)
        return form

    def formfield_for_choice_field(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        if db_field.name == "mode":
            kwargs["widget"] = ModeWidget(attrs={"class": "radiolist inline"})
        return super().formfield_for_choice_field(db_field, request, **kwargs)

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        show_question(context["adminform"])
        form = context["adminform"].form
        if TargetForm.base_fields.keys() <= form.fields.keys():  # as in the form, which may be a preset, or not valid
            form.instance.typed_views = typed_views_in_words(
                {name: form[name].value() for name in TargetForm.base_fields}
            )
        rule = kwargs.get("obj")
        inlines = self.get_inline_instances(request, rule)
        hidden = not any(isinstance(inline, RuleLimitInline) for inline in inlines)
        context |= limits_context() | {"suggestions": suggestions(), "limits_hidden": hidden}
        may_change = self.has_change_permission(request, rule) if rule else True
        context["limits_locked"] = not hidden and may_change and not may_edit_limits(request, inlines, rule)
        if hidden:
            context["limits_in_words"] = _limits_of(rule)
        if rule and request.method == "GET":  # after a POST with errors it contains unsaved values
            context["reasons_against"] = reasons_against(rule)
        return super().render_change_form(request, context, *args, **kwargs)

    def response_add(self, request: HttpRequest, obj: Rule, *args: Any, **kwargs: Any) -> HttpResponse:
        response = super().response_add(request, obj, *args, **kwargs)
        _message_effect(request, obj)
        return response

    def response_change(self, request: HttpRequest, obj: Rule) -> HttpResponse:
        response = super().response_change(request, obj)
        if not is_unchanged(request):
            _message_effect(request, obj)
        return response

    @admin.display(description=gettext_lazy("Views that match"))
    def matching_views(self, rule: Rule) -> str:
        """Return the views that the rule in the form matches. The page's script updates them while it is edited."""
        text = views_in_words(rule) if (typed := getattr(rule, "typed_views", None)) is None else typed
        return format_html('<span class="ratelimiter-views" aria-live="polite">{}</span>', text)

    @admin.display(description=gettext_lazy("mode"), ordering="mode")
    def mode_shown(self, rule: Rule) -> str:
        """Return its mode, with a CSS class for the list, and its owner if that is not the admin."""
        mode = format_html('<span class="ratelimiter-{}">{}</span>', rule.mode, rule.get_mode_display())
        return mode + owner_note(rule)

    @admin.display(description=gettext_lazy("today"))
    def today(self, rule: Any) -> Any:
        """Return its requests since midnight, as far as they are collected."""
        return rule.usage_today

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


def _message_effect(request: HttpRequest, rule: Rule) -> None:
    """Show what a saved rule does from now on, below Django's own message."""
    if not rule.limits.exists():
        messages.warning(request, _("This rule has no limits, so it applies to nobody yet."))
        return
    texts = {
        Rule.Mode.OFF: _("Off: it applies to no request."),
        Rule.Mode.SHADOW: _(
            "In shadow: it counts which requests it would reject, and rejects none. "
            "Choose the mode “enforce” when its numbers look right."
        ),
        Rule.Mode.ENFORCE: _("Enforced: requests beyond its limits are rejected."),
    }
    messages.info(request, texts[Rule.Mode(rule.mode)])
    for doubt in doubts(rule):
        messages.warning(request, doubt)


def _limits_of(rule: Rule | None) -> str:
    """Return its limits as text, as in the list of rules; "" for a new rule, and for one that cannot be used."""
    if rule is None:
        return ""
    compiled = RuleSet.from_snapshot(snapshot_of_rows())
    return next((limits_in_words(each) for each in compiled.rules if each.slug == rule.slug), "")
