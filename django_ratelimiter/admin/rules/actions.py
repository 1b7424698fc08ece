"""The actions of the list of rules: off, shadow, enforce, and reset of all counters; and what they leave to a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import QuerySet
from django.db.models.signals import post_save, pre_save
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...models import Rule, RuleLimit
from ...rules.files.writing import text_of_database
from ...rules.formatting import listed
from ...rules.stored.storage import primary
from ..versioned import SaveAborted, saved_as_version
from .confirmation import may_enforce, question_page


class RuleActions(admin.ModelAdmin):
    """An admin with the actions. To enforce needs its own permission, besides the one to change rules."""

    actions = ("switch_off", "shadow", "enforce", "forget")

    def has_publish_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may enforce rules, for the list's action."""
        return self.has_change_permission(request) and may_enforce(request)

    @admin.action(description=gettext_lazy("Switch off selected rules"), permissions=["change"])
    def switch_off(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Switch the rules off."""
        self._switch(request, queryset, Rule.Mode.OFF)

    @admin.action(description=gettext_lazy("Put selected rules in shadow"), permissions=["change"])
    def shadow(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Set the rules to shadow: count which requests they would reject, and reject none."""
        self._switch(request, queryset, Rule.Mode.SHADOW)

    @admin.action(description=gettext_lazy("Enforce selected rules"), permissions=["publish"])
    def enforce(self, request: HttpRequest, queryset: QuerySet[Rule]) -> HttpResponse | None:
        """Enforce the rules, after a confirmation if one would be enforced for all callers."""
        question = question_page(self, request, queryset)
        if question is None:
            self._switch(request, queryset, Rule.Mode.ENFORCE)
        return question

    @admin.action(description=gettext_lazy("Reset the counters of selected rules"), permissions=["change"])
    def forget(self, request: HttpRequest, queryset: QuerySet[Rule]) -> None:
        """Reset all counters: the generation is a part of their names, and the old ones expire."""
        chosen = [
            rule
            for rule in queryset
            if locked_among([rule]) or self.has_change_permission(request, rule)  # a file does not contain usage
        ]
        limits = RuleLimit.objects.using(primary()).filter(rule__in=chosen)
        limited = {*limits.values_list("rule", flat=True)}
        rules = [rule for rule in chosen if rule.pk in limited]
        with saved_as_version(request, f"counters reset: {', '.join(rule.slug for rule in rules)}"):
            if not (current := [*limits]):  # read under the lock
                raise SaveAborted
            _raise_generations(current)
            _log_changes(request, rules, _("Counters reset."))
        if rules:
            text = ngettext(
                "The counters of %(count)d rule were reset.", "The counters of %(count)d rules were reset.", len(rules)
            )
            self.message_user(request, text % {"count": len(rules)}, messages.SUCCESS)
        else:
            self.message_user(request, _("Nothing changed: the selected rules have no limits."), messages.WARNING)

    def _switch(self, request: HttpRequest, queryset: QuerySet[Rule], mode: Rule.Mode) -> None:
        """Set the mode with one query, as one version; with the signals of each rule, and a line in its history."""
        locked, switched = list[str](), list[Rule]()
        with saved_as_version(request, f"rules set to {mode}"):
            rules = [*queryset.all()]  # read under the lock
            locked = locked_among(rules)
            switched = [rule for rule in rules if rule.mode != mode and self.has_change_permission(request, rule)]
            if not switched:
                raise SaveAborted
            for rule in switched:
                rule.mode = mode
            _save(switched, "mode")
            _log_changes(request, switched, [{"changed": {"fields": [_("Mode")]}}])
        name_locked(request, locked)
        if switched:
            text = ngettext("%(count)d rule set to %(mode)s.", "%(count)d rules set to %(mode)s.", len(switched))
            self.message_user(request, text % {"count": len(switched), "mode": mode.label}, messages.SUCCESS)
        elif not locked:
            text = _("Nothing changed: the selected rules are set to %(mode)s already.")
            self.message_user(request, text % {"mode": mode.label}, messages.WARNING)


def _raise_generations(limits: Sequence[RuleLimit]) -> None:
    """Give all limits of a rule the same new generation."""
    highest: dict[int, int] = {}
    for limit in limits:
        highest[limit.rule_id] = max(highest.get(limit.rule_id, 0), limit.generation)
    for limit in limits:
        limit.generation = highest[limit.rule_id] + 1
    _save(limits, "generation")


def _save(rows: Sequence[Rule] | Sequence[RuleLimit], column: str) -> None:
    """Save one column of rows of a model with one query, and send the signals of `save`.

    On SQLite there is a query for every few hundred rows.
    """
    model: Any = type(rows[0])
    named: Any = {"raw": False, "using": primary(), "update_fields": frozenset({column})}
    for row in rows:
        pre_save.send(model, instance=row, **named)
    model._base_manager.using(primary()).bulk_update(rows, [column])
    for row in rows:
        post_save.send(model, instance=row, created=False, **named)


def _log_changes(request: HttpRequest, rules: Sequence[Rule], message: Any) -> None:
    """Write a line into the history of each rule, all with one query."""
    LogEntry.objects.log_actions(request.user.pk, rules, CHANGE, message)  # type: ignore[arg-type]


def download_view(_page_of: Any, request: HttpRequest) -> HttpResponse:
    """Send the rules as a file. Access entries are not in it."""
    response = HttpResponse(text_of_database("yaml"), content_type="application/yaml; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="ratelimits.yaml"'
    return response


def owner_note(rule: Rule) -> SafeString:
    """Return the owner of a rule for the list; empty for the admin, the usual owner."""
    if rule.owner == Rule.Owner.ADMIN:
        return SafeString("")
    return format_html('<br><span class="ratelimiter-owner">{}</span>', rule.get_owner_display())


def locked_among(rules: Any) -> list[str]:
    """Return the slugs of those rules that belong to a file."""
    return [rule.slug for rule in rules if is_locked(rule)]


def name_locked(request: HttpRequest, slugs: Sequence[str]) -> None:
    """Show a message with the rules that an action does not change, because they belong to a file."""
    if slugs:
        text = _("Rules of a file stay as they are: %(names)s. Change them there.")
        messages.warning(request, text % {"names": listed(slugs)})


def is_locked(rule: Any) -> bool:
    """Return whether this is a rule of a file, which cannot be changed or deleted here."""
    return rule is not None and rule.owner == Rule.Owner.FILE
