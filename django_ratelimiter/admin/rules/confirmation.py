"""Before a rule is enforced: the permission, and a confirmation if it would be enforced for all callers.

Both in the rule's form and in the list's action. Users without the permission may edit a rule, but not enforce it.
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, AdminForm
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...models import Rule
from ..pages import show
from ..versioned import NotAColumn

PERMISSION: Final = "django_ratelimiter.publish_rule"

#: The name of the checkbox that must be ticked.
CONFIRM: Final = "confirm_everybody"

#: The fields of a rule that determine whether it needs confirmation.
_FIELDS: Final = ("mode", "methods", "path_kind", "path", "view_name", "scope", "partition_by")

_TITLE: Final = gettext_lazy("Enforce this rule for everybody?")
_WARNING: Final = gettext_lazy(
    "This rule would be enforced for every request, and all callers share one counter. "
    "As soon as its quota is used, every caller is rejected until the counter resets."
)


_NEEDED: Final = gettext_lazy(
    "You cannot choose “enforce”: you need the permission “Can have rules enforced, and bring back a version”. "
    "Save the rule in shadow, and ask somebody who has this permission."
)


def may_enforce(request: HttpRequest) -> bool:
    """Return whether the user of this request may set the mode to "enforce"."""
    return request.user.has_perm(PERMISSION)


class Confirmation(NotAColumn, forms.BooleanField):
    """A checkbox."""


class EnforcingForm(forms.ModelForm):
    """Offers the mode "enforce" to users with the permission, and for a rule that is enforced already.

    To enforce a rule for all callers, a box must be ticked; the page shows it if `needs_confirmation`. may_enforce:
    whether the user has the permission; the admin sets it in each request.
    """

    confirm_everybody = Confirmation(label=gettext_lazy("Yes, enforce it for every request"), required=False)

    may_enforce = True
    needs_confirmation = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        enforce, mode = Rule.Mode.ENFORCE, self.fields.get("mode")
        if not isinstance(mode, forms.ChoiceField) or self.may_enforce or self.instance.mode == enforce:
            return
        mode.choices = [choice for choice in Rule.Mode.choices if choice[0] != enforce]
        mode.help_text = f"{mode.help_text} {_NEEDED}"
        mode.error_messages["invalid_choice"] = _NEEDED
        if self.initial.get("mode") == enforce:  # a link may have set it
            self.initial["mode"] = Rule.Mode.SHADOW.value

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


def show_question(adminform: AdminForm, title: Any = _TITLE, warning: Any = _WARNING) -> None:
    """Add the checkbox at the top of the form's page, if it is required."""
    if getattr(adminform.form, "needs_confirmation", False):
        affected: Any = {"fields": (CONFIRM,), "description": warning}
        adminform.fieldsets = [(title, affected), *adminform.fieldsets]


def question_page(page_of: Any, request: HttpRequest, queryset: QuerySet[Rule]) -> TemplateResponse | None:
    """Return the confirmation page before the action enforces these rules; `None` = not needed, or confirmed."""
    rules = list(queryset)
    affected = [rule for rule in rules if rule.mode != Rule.Mode.ENFORCE and rule.is_for_everybody]
    if not affected or CONFIRM in request.POST:
        return None
    context = {
        "rules": rules,
        "for_everybody": affected,
        "confirm_name": CONFIRM,
        "checkbox_name": ACTION_CHECKBOX_NAME,
    }
    return show(page_of, request, "enforce_confirmation", _("Enforce these rules for everybody?"), context)


def _is_enforced_for_everybody(rule: Rule) -> bool:
    return rule.mode == Rule.Mode.ENFORCE and rule.is_for_everybody
