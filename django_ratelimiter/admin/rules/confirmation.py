"""The question before a rule is enforced for everybody: in the rule's form, and on a page of the list's action."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, AdminForm
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule

#: The name of the box that has to be ticked.
CONFIRM: Final = "confirm_everybody"

#: The fields of a rule that decide whether it needs confirmation.
_FIELDS: Final = ("mode", "methods", "path_kind", "path", "view_name", "scope", "partition_by")

_WARNING: Final = gettext_lazy(
    "This rule would be enforced for every request, and all callers share one counter. "
    "As soon as its quota is used, every caller is rejected until the counter resets."
)


class Confirmation(forms.BooleanField):
    """A box to tick. It is no part of the row, so the row's history does not name it."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class ConfirmationForm(forms.ModelForm):
    """Lets a rule be enforced for everybody only once a box is ticked, which the page shows if `needs_confirmation`."""

    confirm_everybody = Confirmation(label=gettext_lazy("Yes, enforce it for every request"), required=False)

    needs_confirmation = False

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        data = self.cleaned_data
        fields = {name: data[name] for name in _FIELDS if name in data}
        was_enforced = self.instance.pk is not None and _is_enforced_for_everybody(self.instance)
        is_complete = len(fields) == len(_FIELDS)
        self.needs_confirmation = is_complete and not was_enforced and _is_enforced_for_everybody(Rule(**fields))
        if self.needs_confirmation and not data.get(CONFIRM):
            text = _(
                "Tick this box to save the rule as it is. Or choose what it is counted by, which requests it "
                "applies to, or the mode “shadow”."
            )
            self.add_error(CONFIRM, ValidationError(text, code="unconfirmed"))
        return data


def show_question(adminform: AdminForm) -> None:
    """Put the box on top of the form's page, if the form asks."""
    if getattr(adminform.form, "needs_confirmation", False):
        affected: Any = {"fields": (CONFIRM,), "description": _WARNING}
        adminform.fieldsets = [(_("Enforce this rule for everybody?"), affected), *adminform.fieldsets]


def question_page(
    model_admin: admin.ModelAdmin, request: HttpRequest, queryset: QuerySet[Rule]
) -> TemplateResponse | None:
    """The page that asks before the action enforces these rules; `None` = nothing to ask, or it is confirmed."""
    rules = list(queryset)
    affected = [rule for rule in rules if rule.mode != Rule.Mode.ENFORCE and rule.is_for_everybody]
    if not affected or CONFIRM in request.POST:
        return None
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": _("Enforce these rules for everybody?"),
        "rules": rules,
        "for_everybody": affected,
        "confirm_name": CONFIRM,
        "checkbox_name": ACTION_CHECKBOX_NAME,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/django_ratelimiter/enforce_confirmation.html", context)


def _is_enforced_for_everybody(rule: Rule) -> bool:
    return rule.mode == Rule.Mode.ENFORCE and rule.is_for_everybody
