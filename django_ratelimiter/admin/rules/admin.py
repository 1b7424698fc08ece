"""The admin's pages of rules, with their limits."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...models import Rule
from ...rules import inline as code
from ...rules.formatting import limits_in_words
from ...rules.records import RuleRecord
from ...rules.ruleset import RuleSet
from ...rules.stored.compiler import reasons_against, snapshot_of_rows
from ..enforcement import EnforcementSwitch
from ..explain import ExplainPage
from ..formatting import split_in_words
from ..overview.views import OverviewSearch
from ..versioned import SaveAborted, VersionedAdmin, saved_as_version
from .confirmation import question_page, show_question
from .forms import RuleForm
from .history import HistoryPages
from .limits import SENTENCES, RuleLimitInline, limits_context, live_preview
from .targets import doubts, place_with_doubts


class CodeRule(NamedTuple):
    """A rule written in code, in words."""

    slug: str
    mode: str
    counted_by: str
    limits: str

    @classmethod
    def of(cls, rule: RuleRecord) -> CodeRule:
        """Describe this record."""
        limits = [record.limit for records in rule.limits.values() for record in records]
        refuses_all = bool(limits) and all(limit.capacity < rule.cost for limit in limits)
        words = _("refuses every request") if refuses_all else limits_in_words(rule)
        return cls(rule.slug, rule.mode, _(" and ").join(rule.partition_by), words)


class RuleChangeList(ChangeList):
    """A page of rules. What is shown of their limits comes from one compilation of all rows."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        compiled = RuleSet.from_snapshot(snapshot_of_rows())
        words = {rule.slug: limits_in_words(rule) for rule in compiled.rules}
        for slug, reason in compiled.left_out:
            words[slug] = format_html('<span class="ratelimiter-left-out">{}</span>', _("Not in force. %s") % reason)
        for rule in self.result_list:
            rule.in_words = words.get(rule.slug, "")  # a replica may still list a rule that is deleted


@admin.register(Rule)
class RuleAdmin(HistoryPages, EnforcementSwitch, ExplainPage, OverviewSearch, VersionedAdmin):
    """Rules."""

    form = RuleForm
    inlines = (RuleLimitInline,)
    radio_fields = {"mode": admin.HORIZONTAL}  # noqa: RUF012
    list_display = ("name", "mode", "priority", "place", "counted_by", "limits")
    list_filter = ("mode", "limits__tier", "path_kind")
    search_fields = ("name", "slug", "path", "view_name", "scope", "description")
    actions = ("switch_off", "shadow", "enforce", "forget")
    fieldsets = (
        (None, {"fields": ("name", "slug", "mode", "description")}),
        (
            gettext_lazy("Which requests"),
            {
                "fields": ("methods", ("path_kind", "path"), "view_name", "scope"),
                "description": gettext_lazy("A request meets the rule if all of these agree with it."),
            },
        ),
        (
            gettext_lazy("How they are counted"),
            {"fields": ("partition_by", "missing_partition", "cost", "charge_when", "sync_interval_ms")},
        ),
        (gettext_lazy("What then happens"), {"fields": ("message", "count_refusals", "failure_policy", "priority")}),
    )

    class Media:
        css = {"all": ["django_ratelimiter/rules.css"]}  # noqa: RUF012
        js = ("django_ratelimiter/rules.js",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RuleChangeList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The rules, and below them those that are written in code, for reading only."""
        context = {"rules_in_code": [CodeRule.of(rule) for rule in code.registered()]}
        return super().changelist_view(request, context | (extra_context or {}))

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Any]:
        return {} if obj else {"slug": ("name",)}

    def get_urls(self) -> list[URLPattern]:
        url = path("sentences/", self.admin_site.admin_view(self.sentences_view), name=SENTENCES)
        return [url, *super().get_urls()]

    def sentences_view(self, request: HttpRequest) -> JsonResponse:
        """Return what the limit that is being typed would do, and its errors by field. Saves nothing."""
        if not self.has_change_permission(request) and not self.has_add_permission(request):
            raise PermissionDenied
        return JsonResponse(live_preview(request.GET))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        context |= limits_context()
        show_question(context["adminform"])
        rule = kwargs.get("obj")
        if not any(isinstance(inline, RuleLimitInline) for inline in self.get_inline_instances(request, rule)):
            context |= {"limits_hidden": True, "limits_in_words": _limits_of(rule)}
        if rule and request.method == "GET":  # after a POST with errors it bears what was not saved
            context["reasons_against"] = reasons_against(rule)
        return super().render_change_form(request, context, *args, **kwargs)

    def response_add(self, request: HttpRequest, obj: Rule, *args: Any, **kwargs: Any) -> HttpResponse:
        response = super().response_add(request, obj, *args, **kwargs)
        _message_effect(request, obj)
        return response

    def response_change(self, request: HttpRequest, obj: Rule) -> HttpResponse:
        response = super().response_change(request, obj)
        _message_effect(request, obj)
        return response

    @admin.display(description=gettext_lazy("applies to"))
    def place(self, rule: Rule) -> str:
        """Return which requests it matches, in words."""
        return place_with_doubts(rule)

    @admin.display(description=gettext_lazy("counted by"))
    def counted_by(self, rule: Rule) -> str:
        """Return what it is counted by, in words."""
        return split_in_words(rule)

    @admin.display(description=gettext_lazy("limits"))
    def limits(self, rule: Any) -> Any:
        """Return its limits in words, or why it is not in force."""
        return rule.in_words

    @admin.action(description=gettext_lazy("Switch off selected rules"), permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Switch off."""
        self._switch(request, queryset, Rule.Mode.OFF)

    @admin.action(description=gettext_lazy("Put selected rules in shadow"), permissions=["change"])
    def shadow(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Count which requests they would reject, and reject none."""
        self._switch(request, queryset, Rule.Mode.SHADOW)

    @admin.action(description=gettext_lazy("Enforce selected rules"), permissions=["change"])
    def enforce(self, request: HttpRequest, queryset: QuerySet[Rule]) -> HttpResponse | None:
        """Enforce, once confirmed where a rule would be enforced for everybody."""
        question = question_page(self, request, queryset)
        if question is None:
            self._switch(request, queryset, Rule.Mode.ENFORCE)
        return question

    @admin.action(description=gettext_lazy("Forget what is spent under selected rules"), permissions=["change"])
    def forget(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Begin all counters anew: the generation is part of their names, the old ones expire by themselves."""
        rules = [rule for rule in queryset if rule.limits.exists() and self.has_change_permission(request, rule)]
        names = ", ".join(rule.slug for rule in rules)
        with saved_as_version(request, _("What was spent is forgotten: %(names)s") % {"names": names}):
            for rule in rules:
                generation = 1 + max(limit.generation for limit in rule.limits.all())
                for limit in rule.limits.all():
                    limit.generation = generation
                    limit.save(update_fields=["generation"])
                self.log_change(request, rule, _("What was spent is forgotten."))
            if not rules:
                raise SaveAborted
        if rules:
            text = ngettext("%(count)d rule counts anew.", "%(count)d rules count anew.", len(rules))
            self.message_user(request, text % {"count": len(rules)}, messages.SUCCESS)
        else:
            self.message_user(request, _("Nothing changed: the selected rules have no limits."), messages.WARNING)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Rule], mode: Rule.Mode) -> None:
        """Save row by row, so that signals are sent and the history of each rule tells; number all as one version."""
        switched = 0
        with saved_as_version(request, _("Rules set to %(mode)s") % {"mode": mode.label}):
            for rule in queryset:
                if rule.mode != mode and self.has_change_permission(request, rule):
                    rule.mode = mode
                    rule.save(update_fields=["mode"])
                    self.log_change(request, rule, [{"changed": {"fields": [_("Mode")]}}])
                    switched += 1
            if not switched:
                raise SaveAborted
        if switched:
            text = ngettext("%(count)d rule set to %(mode)s.", "%(count)d rules set to %(mode)s.", switched)
            self.message_user(request, text % {"count": switched, "mode": mode.label}, messages.SUCCESS)
        else:
            text = _("Nothing changed: the selected rules are set to %(mode)s already.")
            self.message_user(request, text % {"mode": mode.label}, messages.WARNING)


def _message_effect(request: HttpRequest, rule: Rule) -> None:
    """Say what a saved rule does from now on, below Django's own message."""
    if not rule.limits.exists():
        messages.warning(request, _("This rule has no limits, so it applies to nobody yet."))
        return
    texts = {
        Rule.Mode.OFF: _("Off: it applies to no request."),
        Rule.Mode.SHADOW: _(
            "In shadow: it counts which requests it would reject, and rejects none. "
            "Choose the mode “enforce” when its numbers look right."
        ),
        Rule.Mode.ENFORCE: _("Enforced: from now on, requests beyond its limits are rejected."),
    }
    messages.info(request, texts[Rule.Mode(rule.mode)])
    for doubt in doubts(rule):
        messages.warning(request, doubt)


def _limits_of(rule: Rule | None) -> str:
    """Return its limits in words, as in the list of rules; "" for a new rule, and for one that is not in force."""
    if rule is None:
        return ""
    compiled = RuleSet.from_snapshot(snapshot_of_rows())
    return next((limits_in_words(each) for each in compiled.rules if each.slug == rule.slug), "")
