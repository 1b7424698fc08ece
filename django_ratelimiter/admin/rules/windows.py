"""The form field of a window: a number and its unit. Its value is in seconds, exactly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

#: The seconds of each unit, and its name. Without a unit, as programs send it, the number is in seconds.
UNITS: Final = (
    (1, gettext_lazy("seconds")),
    (60, gettext_lazy("minutes")),
    (3_600, gettext_lazy("hours")),
    (86_400, gettext_lazy("days")),
)

#: A number with more digits than this before the point is too large in any unit.
_MAX_EXPONENT: Final = 20


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
        if seconds == 1 or number.adjusted() >= _MAX_EXPONENT:
            return number
        return (number * seconds).normalize()  # trailing zeros would count as decimal places

    def prepare_value(self, value: Any) -> Any:
        return value
