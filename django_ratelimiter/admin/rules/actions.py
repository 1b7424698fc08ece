"""The actions of the list of rules: off, shadow, enforce, and reset of all counters."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...models import Rule
from ..files.ownership import locked_among
from ..versioned import SaveAborted, saved_as_version
from .confirmation import may_enforce, question_page


class RuleActions(admin.ModelAdmin):
    """An admin with the actions. To enforce takes a permission of its own, beside the one to change rules."""

    actions = ("switch_off", "shadow", "enforce", "forget")

    def has_publish_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may have rules enforced, for the list's action."""
        return self.has_change_permission(request) and may_enforce(request)

    @admin.action(description=gettext_lazy("Switch off selected rules"), permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Switch off."""
        self._switch(request, queryset, Rule.Mode.OFF)

    @admin.action(description=gettext_lazy("Put selected rules in shadow"), permissions=["change"])
    def shadow(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Count which requests they would reject, and reject none."""
        self._switch(request, queryset, Rule.Mode.SHADOW)

    @admin.action(description=gettext_lazy("Enforce selected rules"), permissions=["publish"])
    def enforce(self, request: HttpRequest, queryset: QuerySet[Rule]) -> HttpResponse | None:
        """Enforce, once confirmed where a rule would be enforced for everybody."""
        question = question_page(self, request, queryset)
        if question is None:
            self._switch(request, queryset, Rule.Mode.ENFORCE)
        return question

    @admin.action(description=gettext_lazy("Forget what is spent under selected rules"), permissions=["change"])
    def forget(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Begin all counters anew: the generation is part of their names, the old ones expire by themselves."""
        rules = [
            rule
            for rule in queryset
            if rule.limits.exists()
            and (locked_among([rule]) or self.has_change_permission(request, rule))  # no file says what was spent
        ]
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
        switched, locked = 0, locked_among(queryset)
        with saved_as_version(request, _("Rules set to %(mode)s") % {"mode": mode.label}):
            for rule in queryset:
                if rule.mode != mode and self.has_change_permission(request, rule):
                    rule.mode = mode
                    rule.save(update_fields=["mode"])
                    self.log_change(request, rule, [{"changed": {"fields": [_("Mode")]}}])
                    switched += 1
            if not switched:
                raise SaveAborted
        if locked:
            text = _("Rules of a file stay as they are: %(names)s. Change them there, or unlock them first.")
            self.message_user(request, text % {"names": ", ".join(locked)}, messages.WARNING)
        if switched:
            text = ngettext("%(count)d rule set to %(mode)s.", "%(count)d rules set to %(mode)s.", switched)
            self.message_user(request, text % {"count": switched, "mode": mode.label}, messages.SUCCESS)
        elif not locked:
            text = _("Nothing changed: the selected rules are set to %(mode)s already.")
            self.message_user(request, text % {"mode": mode.label}, messages.WARNING)
