"""Two editors at once: a save on top of another user's change is refused, and the form keeps what was typed.

A form contains the digest of the rows that it was filled from. It is refused until its page is loaded again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, QueryDict
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Rule, RuleLimit, RuleSetVersion
from ..rules.stored.history.log import latest_change_of
from ..rules.stored.storage import primary
from .formatting import when_and_who
from .reasons import NotAColumn

#: The names of the two fields in each form of a row of the rule set that are not columns.
REASON: Final = "change_reason"
SEEN: Final = "seen_digest"

#: Columns that are not in forms, and that a save does not overwrite.
_NOT_EDITED: Final = ("generation",)


class _Aside(NotAColumn, forms.CharField):
    """A text that is not a column."""


class EditedForm(forms.ModelForm):
    """A form for a row of the rule set, with a reason, and with the state of the row when the form was opened.

    is_outdated: whether the row has been saved since; then the form is not valid.
    """

    change_reason = _Aside(
        label=gettext_lazy("Reason for this change"),
        required=False,
        max_length=RuleSetVersion._meta.get_field("reason").max_length,
        help_text=gettext_lazy("Optional. The history shows it."),
        widget=forms.TextInput({"class": "vTextField"}),
    )
    seen_digest = _Aside(required=False, max_length=64, widget=forms.HiddenInput)

    is_outdated = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and not self.is_bound:
            self.initial[SEEN] = digest_of(self.instance)

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        if self.is_outdated:
            version = latest_change_of(self.instance._meta.model_name, self.instance.slug)
            when = when_and_who(version) if version else _("meanwhile")
            text = _("This was saved %(when)s, so nothing was saved now. What you typed is still here.")
            link = _("Load it again, without what you typed")
            error = format_html('{} <a href="">{}</a>', text % {"when": when}, link)
            self.add_error(None, ValidationError(error, code="outdated"))
        return self.cleaned_data


def digest_of(row: Model) -> str:
    """Return a digest of a row and its limits in the database."""
    rows = [row, *_limits_of(row)]
    values = [
        {
            field.attname: getattr(each, field.attname)
            for field in each._meta.concrete_fields
            if field.name not in _NOT_EDITED
        }
        for each in rows
    ]
    return hashlib.sha256(json.dumps(values, default=str, sort_keys=True).encode()).hexdigest()


def _limits_of(row: Model) -> Sequence[RuleLimit]:
    """Return a rule's limits, the oldest first; empty for a tier."""
    return list(row.limits.order_by("pk")) if isinstance(row, Rule) else []


def is_outdated(request: HttpRequest, row: Model) -> bool:
    """Return whether the row has been saved since the form was filled from it.

    Then what was typed for limits that are gone becomes that of new ones: Django would not show it again.
    """
    seen = request.POST.get(SEEN)
    if not seen:  # browsers always send it; a program that posts forms has not read the row
        return False
    current = type(row)._default_manager.using(primary()).get(pk=row.pk)  # the given row may be from a replica
    if digest_of(current) == seen:
        return False
    sent = request.POST.copy()
    _keep_typed(sent, "limits", {str(limit.pk) for limit in _limits_of(current)})
    request.POST = sent  # type: ignore[assignment]
    return True


def _keep_typed(sent: QueryDict, prefix: str, keys: Collection[str]) -> None:
    """Move the forms of rows that are gone behind the others, as those of new rows. keys: of the rows that are left."""
    total = sent.get(f"{prefix}-TOTAL_FORMS", "")
    if not total.isdecimal() or len(total) > 4 or int(total) > forms.formsets.DEFAULT_MAX_NUM:
        return  # the form set reports the error
    typed = [_fields_of(sent, f"{prefix}-{number}-") for number in range(int(total))]
    known = [fields for fields in typed if fields.get("id", [""])[-1] in keys]
    new = [{**fields, "id": [""]} for fields in typed if fields not in known and not fields.get("DELETE")]
    for name in [name for name in sent if name.startswith(f"{prefix}-") and name.split("-")[1].isdecimal()]:
        del sent[name]
    for number, fields in enumerate([*known, *new]):
        for name, values in fields.items():
            sent.setlist(f"{prefix}-{number}-{name}", values)
    sent[f"{prefix}-TOTAL_FORMS"] = str(len(known) + len(new))
    sent[f"{prefix}-INITIAL_FORMS"] = str(len(known))


def _fields_of(sent: QueryDict, prefix: str) -> dict[str, list[Any]]:
    return {name.removeprefix(prefix): values for name, values in sent.lists() if name.startswith(prefix)}
