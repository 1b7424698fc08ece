"""The form field of a rule's partition: checkboxes for known identities, and a text field for those with a name."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.utils.datastructures import MultiValueDict
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import has_identity, settings, unknown_identity
from ..models.validation import validate_identities
from ..values.partitions import IDENTITIES

#: Users with one of these permissions may see a caller's page.
CALLER_PERMISSIONS: Final = ("django_ratelimiter.view_tierassignment", "django_ratelimiter.unblock_caller")

IDENTITY_LABELS: Final = {
    "user": gettext_lazy("user"),
    "ip": gettext_lazy("IP address"),
    "api_key": gettext_lazy("API key"),
    "session": gettext_lazy("session"),
    "host": gettext_lazy("host"),
}


class IdentitiesWidget(forms.CheckboxSelectMultiple):
    """Checkboxes, and a text field for other identities, separated by commas. Its name ends in "_others"."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        ticked = data.getlist(name) if isinstance(data, MultiValueDict) else data.get(name) or []
        others = [word.strip() for word in str(data.get(f"{name}_others") or "").split(",")]
        return list(dict.fromkeys([*ticked, *filter(None, others)]))

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        known = {choice for choice, _label in self.choices}
        line = forms.TextInput({"class": "vTextField", "placeholder": "header:X-Tenant, path:pk, query:app"})
        others = ", ".join(str(word) for word in value or () if word not in known)
        own = {"id": f"{(attrs or {}).get('id', f'id_{name}')}_others", "aria-label": _("Others, separated by commas")}
        return format_html(
            '<div class="ratelimiter-identities">{}{}</div>',
            super().render(name, value, attrs, renderer),
            line.render(f"{name}_others", others, own),
        )


class ChoiceListField(forms.MultipleChoiceField):
    """Several of a few known words, stored as a JSON list. If the row has no list, none is selected."""

    widget = forms.CheckboxSelectMultiple(attrs={"class": "radiolist inline"})

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, list) else []

    def has_changed(self, initial: Any, data: Any) -> bool:
        return not isinstance(initial, list) or set(map(str, initial)) != set(data or [])


class IdentitiesField(ChoiceListField):
    """Existing identities: those of every project, those of the setting IDENTITIES, and those with a name."""

    widget = IdentitiesWidget(attrs={"class": "radiolist inline"})

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=_choices, **options)

    def validate(self, value: Any) -> None:
        if self.required and not value:
            raise ValidationError(self.error_messages["required"], code="required")
        validate_identities(value)
        for name in value:
            if not has_identity(name):
                raise ValidationError(unknown_identity(name), code="unknown")


def may_see_names(reader: Any) -> bool:
    """Return whether this user may see the names of users: with permission to view users, or names of callers."""
    meta = get_user_model()._meta
    may_view = reader.has_perm(f"{meta.app_label}.view_{meta.model_name}")
    return bool(may_view or reader.has_perm("django_ratelimiter.reveal_caller"))


def label_of(name: str) -> str:
    """Return an identity as text: "IP address", "header X-Tenant"; several are joined by "|"."""
    if "|" in name:
        return _(" and ").join(map(label_of, name.split("|")))
    if "/" in name:
        return _("network of %(bits)s bits") % {"bits": name.partition("/")[2]}
    kind, colon, own = name.partition(":")
    if not colon:
        return str(IDENTITY_LABELS.get(name, name))
    labels = {
        "header": _("header %(name)s"),
        "path": _("path's %(name)s"),
        "field": _("field %(name)s"),
        "query": _("parameter %(name)s"),
        "cookie": _("cookie %(name)s"),
    }
    return labels.get(kind, "%(name)s") % {"name": own}


def _choices() -> list[tuple[str, Any]]:
    return [(name, IDENTITY_LABELS.get(name, name)) for name in (*IDENTITIES, *settings.IDENTITIES)]
