"""The forms of the admin's pages of callers: assignments to tiers, and access entries."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextInputWidget, AutocompleteSelect
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...databases import is_beside_users
from ...identity import MAX_API_KEY, hash_api_key
from ...inspection.caller import UnknownCaller, find_user
from ...inspection.references import is_hash
from ...models import AccessEntry, TierAssignment
from ..rules.forms import CONFIRM, Confirmation, PlainDecimalField

#: Before the hash of an API key, in a field that otherwise takes the key.
HASHED: Final = "sha256:"


class KeyInput(forms.PasswordInput):
    """Hides a key, and never sends it back; but shows a hash, which a link has filled in."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        context: dict[str, Any] = super().get_context(name, value, attrs)
        if str(value or "").startswith(HASHED):
            context["widget"] |= {"type": "text", "value": value}
        return context


def _hash_of(key: str) -> str:
    """Return the hash of a key, or the one that was entered in its place."""
    text = key.removeprefix(HASHED)
    return text if text != key and is_hash(text) else hash_api_key(key)


def _api_key_field() -> forms.CharField:
    """Return a field for a key as callers send it, which is entered once: only its hash is stored and shown."""
    return forms.CharField(
        label=capfirst(gettext_lazy("API key")),
        max_length=MAX_API_KEY,
        required=False,
        validators=[RegexValidator(r"^[ -~]*$", gettext_lazy("A request header can only contain ASCII characters."))],
        widget=KeyInput(attrs={"autocomplete": "off", "class": "vTextField"}),
        help_text=gettext_lazy("Only the hash of the key is stored, so the key cannot be shown again."),
    )


class UserSelect(AutocompleteSelect):
    """Django's field for searching users. An invalid key finds no user: Django would query the database for it."""

    def optgroups(self, name: str, value: Any, attr: Any = None) -> Any:
        return super().optgroups(name, [each for each in value if self._may_be_key(each)], attr)

    def _may_be_key(self, text: Any) -> bool:
        try:
            self.field.target_field.clean(text, None)  # with its range: SQLite takes no larger number
        except ValidationError:
            return False
        return "\0" not in str(text)


class AssignmentForm(forms.ModelForm):
    """The fields of an assignment that can be changed."""

    multiplier = TierAssignment._meta.get_field("multiplier").formfield(
        form_class=PlainDecimalField, required=False, min_value=Decimal("0.001"), widget=AdminIntegerFieldWidget
    )

    class Meta:
        model = TierAssignment
        fields = ("tier", "multiplier", "anchor_day", "starts_at", "ends_at", "reason")

    def clean_multiplier(self) -> Decimal:
        """Return 1 for an empty field."""
        value: Decimal | None = self.cleaned_data["multiplier"]
        return Decimal(1) if value is None else value


class NewAssignmentForm(AssignmentForm):
    """A new assignment. An API key is entered once; only its hash is stored and shown."""

    api_key = _api_key_field()

    class Meta:
        model = TierAssignment
        fields = ("user", "group", "partition", *AssignmentForm.Meta.fields)

    def clean(self) -> dict[str, Any] | None:
        if raw := self.cleaned_data.get("api_key"):
            self.instance.api_key_hash = _hash_of(raw)
        if (user := self.cleaned_data.get("user")) and not is_beside_users(TierAssignment):
            text = _("Users are in another database. Enter the partition user:%(pk)s instead.")
            self.add_error("user", ValidationError(text, params={"pk": user.pk}))
        if self.cleaned_data.get("group") and not is_beside_users(TierAssignment):
            self.add_error("group", _("Groups are in another database. Enter partitions instead, such as user:42."))
        return super().clean()

    def _get_validation_exclusions(self) -> set[str]:
        """Include the hash, which is not a field of this form, so that its constraints are checked."""
        exclude: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return exclude - {"api_key_hash"}


class AccessEntryForm(forms.ModelForm):
    """The fields of an access entry that can be changed. For every address, a box must be ticked."""

    confirm_everybody = Confirmation(label=gettext_lazy("Yes, for every address"), required=False)

    needs_confirmation = False

    class Meta:
        model = AccessEntry
        fields = ("action", "expires_at", "reason")

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        with suppress(ValidationError):  # the value's own error
            is_new = self.instance.pk is None or "action" in self.changed_data
            self.needs_confirmation = is_new and self.instance.is_for_everybody
        if self.needs_confirmation and not self.cleaned_data.get(CONFIRM):
            self.add_error(CONFIRM, ValidationError(_("Tick this box to save the entry as it is."), code="unconfirmed"))
        return self.cleaned_data


class NewAccessEntryForm(AccessEntryForm):
    """A new access entry. The kind of value depends on which of its three fields is filled in."""

    ip = forms.CharField(
        label=gettext_lazy("Address or network"),
        required=False,
        widget=AdminTextInputWidget,
        help_text=gettext_lazy(
            "For example 192.0.2.7 or 192.0.2.0/24. If several networks contain an address, the smallest network "
            "applies."
        ),
    )
    user = forms.CharField(
        label=gettext_lazy("User"),
        required=False,
        widget=AdminTextInputWidget,
        help_text=gettext_lazy("The login name, or the primary key as “id:42”."),
    )
    api_key = _api_key_field()
    customer = forms.CharField(
        label=gettext_lazy("Customer (primary key)"), required=False, widget=AdminTextInputWidget
    )
    digest = forms.CharField(
        label=gettext_lazy("Digest"),
        required=False,
        widget=AdminTextInputWidget,
        help_text=gettext_lazy(
            "What rules count the caller by, and its digest from a list: “ip:DIGEST”, “user or ip:DIGEST”. The "
            "caller's page fills it in."
        ),
    )

    def clean_user(self) -> str:
        """Return the primary key of the user with that name or primary key."""
        name: str = self.cleaned_data["user"]
        try:
            user = find_user(name) if name else None
        except UnknownCaller as error:
            raise ValidationError(str(error), code="unknown") from None
        if name and user is None:
            raise ValidationError(_("There is no user with this name."), code="unknown")
        return str(user.pk) if user else ""

    def clean(self) -> dict[str, Any] | None:
        """Set kind and value from the field that is filled in."""
        typed = {kind: self.cleaned_data.get(kind) for kind in AccessEntry.Kind.values}
        filled = [kind for kind, value in typed.items() if value]
        if not any(kind in self.errors for kind in typed):
            if len(filled) != 1:
                raise ValidationError(_("Fill in exactly one of these fields."), code="one_of")
            [kind] = filled
            value = str(typed[kind])
            self.instance.kind, self.instance.value = kind, _hash_of(value) if kind == "api_key" else value
            self._replace_ended()
        return super().clean()

    def _get_validation_exclusions(self) -> set[str]:
        """Include kind and value, which are not fields of this form, so that uniqueness is checked."""
        exclude: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return exclude - ({"kind", "value"} if self.instance.kind else set())

    def _replace_ended(self) -> None:
        """Let the entry take the place of this caller's entry if that has ended."""
        with suppress(ValidationError):  # it is raised again when all of the entry is checked
            self.instance.clean()
        same = AccessEntry.objects.filter(kind=self.instance.kind, value=self.instance.value)
        if ended := same.filter(expires_at__lte=timezone.now()).first():
            self.instance.pk, self.instance._state.adding = ended.pk, False

    def add_error(self, field: str | None, error: Any) -> None:
        if isinstance(error, ValidationError) and hasattr(error, "error_dict") and "value" in error.error_dict:
            error = ValidationError({self.instance.kind: error.error_dict["value"]})
        super().add_error(field, error)
