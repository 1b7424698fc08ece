"""Two editors at once: a save on top of another user's change is stopped, and the page shows both.

A form contains the digest of the rows that it was filled from. If the rows have changed when it is sent, nothing is
saved, and the form is shown again with the input and the new digest. Sent once more, it is saved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Rule, RuleLimit, RuleSetVersion, Tier
from ..rules.stored.compiler import rule_data, tier_data
from ..rules.stored.history.changes import FieldChange, rule_fields, tier_fields
from ..rules.stored.history.snapshots import Pair
from ..rules.stored.storage import primary
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

    theirs: the row as another user has saved it meanwhile; `None` = it did not change. locked: meanwhile a file was
    applied that the row belongs to, so it cannot be saved.
    """

    change_reason = _Aside(
        label=gettext_lazy("Reason for this change"),
        required=False,
        max_length=RuleSetVersion._meta.get_field("reason").max_length,
        help_text=gettext_lazy("Optional. The history shows it."),
        widget=forms.TextInput({"class": "vTextField"}),
    )
    seen_digest = _Aside(required=False, max_length=64, widget=forms.HiddenInput)

    theirs: Theirs | None = None
    locked = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None and not self.is_bound:
            self.initial[SEEN] = digest_of(self.instance)

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        if self.locked:
            text = _(
                "Nothing was saved: the file was applied meanwhile, and the rule is locked again. To keep what you "
                "typed, unlock the rule in another tab, then save here again."
            )
            self.add_error(None, ValidationError(text, code="locked"))
        elif self.theirs is not None:
            text = _(
                "Nothing was saved: somebody else has changed this since you opened it. This page shows what they "
                "saved and what you typed. To keep yours, save again."
            )
            self.add_error(None, ValidationError(text, code="conflict"))
        return self.cleaned_data


class Theirs(NamedTuple):
    """The row and its limits as another user has saved them, read under the lock."""

    row: Any
    limits: Sequence[RuleLimit]


def digest_of(row: Model) -> str:
    """Return a digest of a row and its limits in the database."""
    rows = [row, *limits_of(row)]
    values = [
        {
            field.attname: getattr(each, field.attname)
            for field in each._meta.concrete_fields
            if field.name not in _NOT_EDITED
        }
        for each in rows
    ]
    return hashlib.sha256(json.dumps(values, default=str, sort_keys=True).encode()).hexdigest()


def limits_of(row: Model) -> Sequence[RuleLimit]:
    """Return a rule's limits, the oldest first; empty for a tier."""
    return list(row.limits.select_related("tier").order_by("pk")) if isinstance(row, Rule) else []


def conflict(request: HttpRequest, row: Model) -> Theirs | None:
    """Return the current row if the form was filled from another state of it.

    The form's data are changed so that it can be sent again: they get the new digest, and the current
    limits. Sent again, the form makes the row and its limits exactly as entered.
    """
    seen = request.POST.get(SEEN)
    if not seen:  # browsers always send it; a program that posts forms has not read the row
        return None
    current = type(row)._default_manager.using(primary()).get(pk=row.pk)  # the given row may be from a replica
    digest = digest_of(current)
    if digest == seen:
        return None
    theirs = Theirs(current, limits_of(current))
    sent = request.POST.copy()
    sent[SEEN] = digest
    if isinstance(current, Rule):
        rebase(sent, "limits", theirs.limits)
    request.POST = sent  # type: ignore[assignment]
    return theirs


def rebase(sent: QueryDict, prefix: str, rows: Sequence[Model]) -> None:
    """Update the forms of a form set to the current rows.

    The form of a deleted row adds a new one. A row that was added meanwhile is marked for deletion: nobody entered it.
    """
    total = sent.get(f"{prefix}-TOTAL_FORMS", "")
    if not total.isdecimal() or len(total) > 4 or int(total) > forms.formsets.DEFAULT_MAX_NUM:
        return  # the form set reports the error
    typed = [_fields_of(sent, f"{prefix}-{number}-") for number in range(int(total))]
    by_key = {str(row.pk): row for row in rows}
    known = [fields for fields in typed if fields.get("id", [""])[-1] in by_key]
    new = [{**fields, "id": [""]} for fields in typed if fields not in known and not fields.get("DELETE")]
    named = {fields["id"][-1] for fields in known}
    come = [_deleted(row) for key, row in by_key.items() if key not in named]
    for name in [name for name in sent if name.startswith(f"{prefix}-") and name.split("-")[1].isdecimal()]:
        del sent[name]
    for number, fields in enumerate([*known, *come, *new]):
        for name, values in fields.items():
            sent.setlist(f"{prefix}-{number}-{name}", values)
    sent[f"{prefix}-TOTAL_FORMS"] = str(len(known) + len(come) + len(new))
    sent[f"{prefix}-INITIAL_FORMS"] = str(len(known) + len(come))


def both_sides(theirs: Theirs, form: forms.ModelForm, limit_forms: Sequence[forms.ModelForm]) -> list[FieldChange]:
    """Return the fields in which the saved and the entered row differ: "before" is saved, "after" is entered."""
    if isinstance(theirs.row, Tier):
        return [*tier_fields(Pair(tier_data(theirs.row), tier_data(form.instance)))]
    typed = [
        each.instance
        for each in limit_forms
        if each.is_valid() and (each.has_changed() or each.instance.pk) and not each.cleaned_data.get("DELETE")
    ]
    pair = Pair(rule_data(theirs.row, theirs.limits), rule_data(form.instance, typed))
    return [change for change in rule_fields(pair) if change.name not in _NOT_EDITED]


def _fields_of(sent: QueryDict, prefix: str) -> dict[str, list[Any]]:
    return {name.removeprefix(prefix): values for name, values in sent.lists() if name.startswith(prefix)}


def _deleted(row: Model) -> dict[str, list[Any]]:
    values = forms.models.model_to_dict(row)
    shown: Mapping[str, Any] = {name: "on" if value is True else value for name, value in values.items()}
    fields = {name: [str(value)] for name, value in shown.items() if value not in (None, False)}
    return {**fields, "id": [str(row.pk)], "DELETE": ["on"]}
