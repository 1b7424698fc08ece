"""The forms of the admin's pages of rules, and their fields: a window as a number and its unit, and identities."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from django import forms
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminTextareaWidget, AdminTextInputWidget
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db.models import PositiveBigIntegerField
from django.http import HttpRequest
from django.utils.datastructures import MultiValueDict
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...conf import has_identity, identities, unknown_identity
from ...engine.limits import MAX_SLOTS
from ...models import Rule, RuleLimit
from ...models.limits import NOT_GIVEN, columns_used
from ...models.validation import METHODS, validate_identities
from ...rules.stored.storage import committed_version
from ..forecast import UnsavedForm
from ..formatting import IDENTITY_LABELS
from ..history import PUBLISH
from ..versioned import NotAColumn

#: The seconds of each unit, and its name. Without a unit, as programs send it, the number is in seconds.
UNITS: Final = (
    (1, gettext_lazy("seconds")),
    (60, gettext_lazy("minutes")),
    (3_600, gettext_lazy("hours")),
    (86_400, gettext_lazy("days")),
)


class PlainDecimalField(forms.DecimalField):
    """A number without the trailing zeros of the database."""

    def to_python(self, value: Any) -> Any:
        """Reject an invalid number before it is compared with the initial value: a signalling NaN raises an error."""
        number = super().to_python(value)
        if number is not None and not number.is_finite():
            raise ValidationError(self.error_messages["invalid"], code="invalid")
        return number

    def prepare_value(self, value: Any) -> Any:
        return f"{value.normalize():f}" if isinstance(value, Decimal) else value


class WindowWidget(forms.MultiWidget):
    """A number with the field's own name, and the unit, whose name ends in "_unit"."""

    use_fieldset = False  # the label is for the number; Django 6.1 uses a legend for others

    def __init__(self) -> None:
        number = forms.NumberInput({"class": "vIntegerField", "step": "any"})
        super().__init__({"": number, "unit": forms.Select({"class": "ratelimiter-unit"}, UNITS)})

    def id_for_label(self, id_: str, index: str = "") -> str:
        """Return the id of the number, which is that of the field."""
        return id_

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Return both as HTML, under their own names."""
        amount, unit = value if isinstance(value, list) else self.decompress(value)
        number, select = self.widgets
        own = {"id": f"{(attrs or {}).get('id', f'id_{name}')}_unit", "aria-label": _("Unit of the window")}
        return format_html(
            '<span class="ratelimiter-window">{} {}</span>',
            number.render(name, amount, attrs, renderer),
            select.render(f"{name}_unit", unit or 1, own, renderer),
        )

    def decompress(self, value: Any) -> list[Any]:
        """Return seconds as a number of the longest unit that divides them, and that unit."""
        if not isinstance(value, Decimal) or not value.is_finite():
            return [value, 1]
        seconds = next((each for each, _name in reversed(UNITS) if value and not value % each), 1)
        return [f"{(value / seconds).normalize():f}", seconds]


class WindowField(PlainDecimalField):
    """A duration in seconds."""

    widget = WindowWidget

    def to_python(self, value: Any) -> Any:
        amount, unit = value if isinstance(value, list) else (value, None)
        number = super().to_python(amount)
        if number is None:
            return None
        if unit and str(unit) not in {str(seconds) for seconds, _name in UNITS}:
            raise ValidationError(_("Choose a unit from the list."), code="unit")
        seconds = int(unit or 1)
        if seconds == 1 or number.adjusted() >= 20:  # too large in any unit
            return number
        return (number * seconds).normalize()  # trailing zeros would count as decimal places

    def prepare_value(self, value: Any) -> Any:
        return value


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


def _choices() -> list[tuple[str, Any]]:
    return [(name, IDENTITY_LABELS.get(name, name)) for name in identities()]


#: The fields of a limit with a number of units.
_UNITS: Final = frozenset(
    [each.name for each in RuleLimit._meta.concrete_fields if isinstance(each, PositiveBigIntegerField)]
)


class KeepStoredChoicesForm(forms.ModelForm):
    """Adds a row's own value to the choices; otherwise the browser would silently select the first one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            value = self.initial.get(name)
            if isinstance(field, forms.TypedChoiceField) and value is not None and not field.valid_value(value):
                known: Any = field.choices
                field.choices = [(value, value), *known]


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


class Confirmation(NotAColumn, forms.BooleanField):
    """A checkbox."""


def may_enforce(request: HttpRequest) -> bool:
    """Return whether the user of this request may set the mode to "enforce"."""
    return request.user.has_perm(PUBLISH)


def show_question(adminform: AdminForm, title: Any = _TITLE, warning: Any = _WARNING) -> None:
    """Add the checkbox at the top of the form's page, if it is required."""
    if getattr(adminform.form, "needs_confirmation", False):
        affected: Any = {"fields": (CONFIRM,), "description": warning}
        adminform.fieldsets = [(title, affected), *adminform.fieldsets]


def _is_enforced_for_everybody(rule: Rule) -> bool:
    return rule.mode == Rule.Mode.ENFORCE and rule.is_for_everybody


class RuleForm(UnsavedForm, KeepStoredChoicesForm):
    """A rule with checkboxes for lists, and suggestions for names of views.

    It offers the mode "enforce" to users with the permission, and for a rule that is enforced already. To enforce it
    for all callers, a box must be ticked; the page shows it if `needs_confirmation`.
    """

    methods = ChoiceListField(
        label=gettext_lazy("Methods"),
        choices=[(method, method) for method in METHODS],
        required=False,
        help_text=Rule._meta.get_field("methods").help_text,
    )
    partition_by = IdentitiesField(
        label=gettext_lazy("Counted by"),
        required=False,
        help_text=Rule._meta.get_field("partition_by").help_text,
    )
    confirm_everybody = Confirmation(label=gettext_lazy("Yes, enforce it for every request"), required=False)
    needs_confirmation = False

    class Meta:
        model = Rule
        fields = "__all__"  # noqa: DJ007  an operator edits the whole rule
        widgets = {  # noqa: RUF012
            "description": AdminTextareaWidget(attrs={"rows": 2}),
            "view_name": AdminTextInputWidget({"list": "ratelimiter-views"}),
            "scope": AdminTextInputWidget({"list": "ratelimiter-scopes"}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        enforce, mode = Rule.Mode.ENFORCE, self.fields.get("mode")
        if not isinstance(mode, forms.ChoiceField) or may_enforce(self.request) or self.instance.mode == enforce:
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


class RuleLimitForm(KeepStoredChoicesForm):
    """A limit. An invalid field is reported once, not again as missing.

    Values of fields that the selected algorithm does not use are dropped: the page hides such fields.
    """

    window_seconds = WindowField(label=gettext_lazy("Window"), max_digits=16, decimal_places=6, required=False)

    class Meta:
        model = RuleLimit
        fields = "__all__"  # noqa: DJ007
        widgets = dict.fromkeys(_UNITS, AdminIntegerFieldWidget) | {
            "slots": AdminIntegerFieldWidget({"min": 1, "max": MAX_SLOTS}),
            "anchor_day": AdminIntegerFieldWidget({"min": 1, "max": 31}),
            "max_delay_ms": AdminIntegerFieldWidget({"min": 0}),
            "timezone": AdminTextInputWidget({"list": "ratelimiter-timezones", "placeholder": "UTC"}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in NOT_GIVEN.keys() & self.fields.keys():  # which fields are required depends on the algorithm
            self.fields[name].required = False
        for name in _UNITS & self.fields.keys():  # the column's own minimum is 0, which no limit can have
            field = self.fields[name]
            field.validators = [each for each in field.validators if not isinstance(each, MinValueValidator)]
            field.validators.append(MinValueValidator(1))
            field.widget.attrs["min"] = 1

    def clean(self) -> dict[str, Any] | None:
        """Drop unused values, and treat empty ones as not set."""
        super().clean()
        data = self.cleaned_data
        used = columns_used(data.get("algorithm", ""), data.get("calendar", ""))
        if data.get("unlimited"):
            used = frozenset()
        for name in NOT_GIVEN.keys() & self.fields.keys():
            if name not in used:
                self.errors.pop(name, None)
            if name not in used or (name in data and data[name] in (None, "")):
                data[name] = NOT_GIVEN[name]
                setattr(self.instance, name, NOT_GIVEN[name])  # the instance keeps its value if the field was not sent
        return data

    def add_error(self, field: str | None, error: Any) -> None:
        if isinstance(error, ValidationError) and hasattr(error, "error_dict"):
            fresh = {name: found for name, found in error.error_dict.items() if name not in self.errors}
            if not fresh:
                return
            error = ValidationError(fresh)
        super().add_error(field, error)

    def validate_constraints(self) -> None:
        """Leave uniqueness to the form set, which has all new rows; Django 6.1 calls this."""


class SingleLimitForm(RuleLimitForm):
    """A limit while it is being entered. The instance has the rule."""

    class Meta(RuleLimitForm.Meta):
        fields = None  # type: ignore[assignment]
        exclude = ("rule",)  # noqa: DJ006


class RuleLimitFormSet(forms.BaseInlineFormSet):
    """The limits of one rule, validated together. Their tiers are read once for all of them."""

    @cached_property
    def _tiers(self) -> list[tuple[Any, Any]]:
        tier: Any = self.form.base_fields["tier"]
        choices = [(key, label) for key, label in tier.choices]  # list() would count the tiers first
        return choices if len(choices) > 1 else [("", _("everyone"))]

    def add_fields(self, form: Any, index: int | None) -> None:
        super().add_fields(form, index)
        form.fields["tier"].choices = self._tiers

    def clean(self) -> None:
        """Reject two equal limits, and a limit beside "unlimited", at the later row."""
        seen: dict[tuple[Any, str | None], bool] = {}
        for form in self.forms:
            data = getattr(form, "cleaned_data", {})
            if not data or data.get("DELETE") or form.errors:
                continue
            tier, limit = data["tier"], form.instance.to_limit()
            key = (tier, limit and limit.tag)
            of_tier = [unlimited for other, unlimited in seen.items() if other[0] == tier]
            if key in seen and limit:
                form.add_error(
                    None, _("This tier already has a limit that counts in the same way. Change that limit instead.")
                )
            elif of_tier and (limit is None or any(of_tier)):
                form.add_error(None, _("An unlimited tier cannot have other limits. Delete one of them."))
            seen[key] = limit is None

    def save_new(self, form: Any, commit: bool = True) -> Any:
        """Make a new limit share the counters of existing ones: their names contain the generation."""
        form.instance.generation = self._generation
        return super().save_new(form, commit)

    @cached_property
    def _generation(self) -> int:
        """The generation of new limits: a new rule must not use the counters of a deleted one with its name.

        Each reset raises a generation by 1 and makes a version, so none has reached the number of this version.
        """
        if self.initial_forms:
            return int(max(other.instance.generation for other in self.initial_forms))
        return committed_version().number

    def save_existing_objects(self, commit: bool = True) -> list[RuleLimit]:
        """Save changed rows under their old keys, but insert them as new: two may have swapped their windows.

        Saved one by one, the first would have the same window as the second, which the database rejects.
        """
        if commit:
            rows = [form.instance.pk for form in self.initial_forms if form.has_changed()]
            RuleLimit.objects.filter(pk__in=rows).delete()
        return super().save_existing_objects(commit)
