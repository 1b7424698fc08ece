"""What is done with rules beside their forms: actions of their list, stop of all enforcement, download as a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import BadRequest
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.signals import post_save, pre_save
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...models import Rule, RuleLimit, RuleSetState
from ...rules import cache
from ...rules.files.texts import text_of_database
from ...rules.formatting import listed
from ...rules.stored.storage import primary
from ..overview.state import RESET
from ..pages import show
from ..versioned import ReasonField, SaveAborted, saved_as_version, warn_if_unpublished
from ..viewer import Viewer
from .forms import CONFIRM, may_enforce

#: The permission to stop all enforcement, and to resume it.
MAY_SWITCH: Final = "switch_enforcement"


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
        rules = list(queryset)
        affected = [rule for rule in rules if rule.mode != Rule.Mode.ENFORCE and rule.is_for_everybody]
        if not affected or CONFIRM in request.POST:
            self._switch(request, queryset, Rule.Mode.ENFORCE)
            return None
        names = {"confirm_name": CONFIRM, "checkbox_name": ACTION_CHECKBOX_NAME}
        context = {"rules": rules, "for_everybody": affected, **names}
        return show(self, request, "enforce_confirmation", _("Enforce these rules for everybody?"), context)

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
        with saved_as_version(request, f"{RESET}: {', '.join(rule.slug for rule in rules)}"):
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


def rules_download_view(_page_of: Any, request: HttpRequest) -> HttpResponse:
    """Send the rules as a file. Access entries are not in it."""
    response = HttpResponse(text_of_database("yaml"), content_type="application/yaml; charset=utf-8")
    response["Content-Disposition"] = 'attachment; filename="ratelimits.yaml"'
    return response


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


class SwitchForm(forms.Form):
    """The reason."""

    reason = ReasonField(
        required=False, help_text=gettext_lazy("Why you stop or resume enforcement. The history shows it.")
    )


def enforcement_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Ask, and do it once confirmed. The form has the direction, so that two operators do not undo each other."""
    form, enforced = SwitchForm(), cache.enforcement_enabled()
    if request.method == "POST":
        if request.POST.get("enforcement") not in ("on", "off"):
            raise BadRequest("enforcement: must be on or off.")
        form, enforced = SwitchForm(request.POST), request.POST["enforcement"] == "off"
        if form.is_valid():
            _switch(page_of, request, not enforced, form.cleaned_data["reason"])
            viewer = Viewer(request)  # without the permission to view rules, there is only the app's front page
            return HttpResponseRedirect(viewer.url("rule_changelist") if viewer.sees_rules else viewer.overview_url())
    title = _("Stop all enforcement?") if enforced else _("Resume enforcement?")
    return show(page_of, request, "enforcement", title, {"enforced": enforced, "form": form})


def _switch(page_of: Any, request: HttpRequest, enabled: bool, reason: str) -> None:
    changed = cache.switch_enforcement(enabled, request.user, reason)
    if enabled:
        text = _("Rules are enforced again.") if changed else _("Rules are enforced already.")
    else:
        text = _("All enforcement is stopped.") if changed else _("All enforcement is stopped already.")
    if changed:
        logged = f"{text} {_('Reason: %(reason)s') % {'reason': reason}}" if reason else text
        page_of.log_change(request, RuleSetState.objects.using(primary()).get(), logged)
    if not cache.last_publish_failed():
        messages.success(request, text)
    transaction.on_commit(partial(warn_if_unpublished, request), using=primary())
