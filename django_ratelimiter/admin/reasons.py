"""The field for an operator's reason: required, and stored in the history."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from ..models import RuleSetVersion
from ..models.validation import validate_line


class NotAColumn:
    """A field that is not a column of its row, so it is not in the row's history."""

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class ReasonField(forms.CharField):
    """A line of text that a version can store as its reason."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("label", gettext_lazy("Reason"))
        length = RuleSetVersion._meta.get_field("reason").max_length
        widget = forms.TextInput({"class": "vTextField", "autofocus": True})
        super().__init__(max_length=length, widget=widget, validators=[validate_line], **options)
