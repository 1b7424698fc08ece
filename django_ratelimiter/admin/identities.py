"""What rules count by, as a field of a form and as text; and callers by their names, for readers who may see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from ..inspection.caller_report import key_labels, labelled
from ..inspection.references import Name, revealed_to
from ..models.validation import validate_identities
from ..values.partitions import IDENTITIES
from ..values.terminal import without_controls

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


def names_in_words(reader: Any, aliases: Iterable[str]) -> Mapping[str, str]:
    """Return the callers as text, by alias; those that the reader may see."""
    return in_words(reader, revealed_to(reader, aliases))


def in_words(reader: Any, known: Mapping[str, Name]) -> Mapping[str, str]:
    """Return each caller as text: "user: paula (id 42)", "IP address: 192.0.2.7", "API key: shop (1a2b3c4d…)".

    One query if users are among them, and one if API keys are.
    """
    logins = _login_names({name.value for name in known.values() if name.kind == "user"})
    keys = {name.value for name in known.values() if name.kind == "api_key"}
    labels = key_labels(reader, keys) if keys else {}
    return {digest: without_controls(_in_words(name, logins, labels)) for digest, name in known.items()}


def _in_words(name: Name, logins: Mapping[str, str], labels: Mapping[str, str]) -> str:
    if name.kind == "partition":
        return name.value
    value, text = name.value, name.shown
    if name.kind == "user" and logins.get(value, value) != value:
        text = _("%(name)s (id %(pk)s)") % {"name": logins[value], "pk": value}
    if name.kind == "api_key":
        text = labelled(name, labels)
    return f"{label_of(name.kind)}: {text}"


def _login_names(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the login names of users by primary key, as texts; deleted users are missing."""
    users = get_user_model()
    wanted = []
    for key in keys:
        try:
            users._meta.pk.run_validators(pk := users._meta.pk.to_python(key))
        except ValidationError:  # not a valid primary key
            continue
        wanted.append(pk)
    if not wanted:
        return {}
    found = users._default_manager.filter(pk__in=wanted).values_list("pk", users.USERNAME_FIELD)
    return {str(pk): str(login) for pk, login in found}
