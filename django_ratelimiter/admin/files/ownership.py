"""Rules that belong to a file: read-only in the admin, until an operator unlocks one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule
from ...rules.formatting import listed
from ..conflicts import SEEN
from ..history.permissions import PUBLISH
from ..pages import PagesAdmin
from ..reasons import ReasonField
from ..versioned import saved_as_version

LOCKED: Final = Rule.Owner.FILE


class ReasonForm(forms.Form):
    """The reason."""

    reason = ReasonField(help_text=gettext_lazy("The history shows it."))


class OwnedRules(PagesAdmin):
    """An admin of rules in which those of a file cannot be changed or deleted before they are unlocked."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        typed = getattr(request, "ratelimiter_locked", None)  # shown again with an error, so nothing is saved
        is_free = not _is_locked(obj) or obj.pk == typed
        return super().has_change_permission(request, obj) and is_free

    def note_lock(self, request: HttpRequest, row: Model) -> None:
        if _is_locked(row) and request.POST.get(SEEN):  # missing in a form that was opened while it was locked
            request.ratelimiter_locked = row.pk  # type: ignore[attr-defined]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change and _is_locked(obj):
            raise PermissionDenied
        super().save_model(request, obj, form, change)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and not _is_locked(obj)

    def may_unlock(self, request: HttpRequest) -> bool:
        """Return whether the user may unlock rules, which includes enforcing them."""
        return super().has_change_permission(request) and request.user.has_perm(PUBLISH)

    def get_urls(self) -> list[URLPattern]:
        page = self.page_path("<path:object_id>/unlock/", self.unlock_view, "rule_unlock", self.may_unlock)
        return [page, *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        rule = kwargs.get("obj")
        if rule is not None and rule.owner != Rule.Owner.ADMIN:
            context |= {"rule_owner": str(rule.owner), "may_unlock": self.may_unlock(request)}
        return super().render_change_form(request, context, *args, **kwargs)

    def unlock_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for the reason, and unlock the rule."""
        rule = self.get_object(request, unquote(object_id))
        if rule is None:
            raise Http404
        page = reverse("admin:django_ratelimiter_rule_change", args=[rule.pk], current_app=self.admin_site.name)
        if not _is_locked(rule):
            messages.info(request, _("This rule is not locked."))
            return HttpResponseRedirect(page)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            reason = form.cleaned_data["reason"]
            with saved_as_version(request, f"rule {rule.slug} unlocked", reason):
                Rule.objects.filter(pk=rule.pk, owner=LOCKED).update(owner=Rule.Owner.UNLOCKED)
                self.log_change(request, rule, f"{_('Unlocked.')} {_('Reason: %(reason)s') % {'reason': reason}}")
            text = _(
                "The rule can be edited here. Its file undoes a change only with --overwrite, or with a plan that has "
                "shown it."
            )
            messages.success(request, text)
            return HttpResponseRedirect(page)
        return self.page(request, "rule_unlock", _("Unlock %(name)s?") % {"name": rule}, {"rule": rule, "form": form})

    @admin.display(description=gettext_lazy("owner"))
    def owner_shown(self, rule: Rule) -> str:
        """Return the owner of a rule."""
        return str(rule.get_owner_display())


def owner_note(rule: Rule) -> SafeString:
    """Return the owner of a rule for the list; empty for the admin, the usual owner."""
    if rule.owner == Rule.Owner.ADMIN:
        return SafeString("")
    return format_html('<br><span class="ratelimiter-owner">{}</span>', rule.get_owner_display())


def locked_among(rules: Any) -> list[str]:
    """Return the slugs of those rules that belong to a file and are locked."""
    return [rule.slug for rule in rules if _is_locked(rule)]


def name_locked(request: HttpRequest, slugs: Sequence[str]) -> None:
    """Show a message with the rules that an action does not change, because they belong to a file and are locked."""
    if slugs:
        text = _("Rules of a file stay as they are: %(names)s. Change them there, or unlock them first.")
        messages.warning(request, text % {"names": listed(slugs)})


def _is_locked(rule: Any) -> bool:
    return rule is not None and rule.owner == LOCKED
