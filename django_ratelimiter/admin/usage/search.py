"""From a caller to its digest: the input is not in any URL, log or table of ours."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...conf import settings
from ...databases import spelled
from ...identity import Identity, digest, identify
from ...inspection.caller import UnknownCaller, find_user
from ...rules import cache
from ...rules.records import RuleRecord
from ...values.bounds import MAX_TEXT
from ...values.partitions import encode_partition, is_address
from ..identities import label_of

_FALLBACK: Final = "ip"


class CallerForm(forms.Form):
    """A field for each name that a rule is split by, and one for the address that may replace them.

    After validation, `digest` is the caller's digest in the rule's counters.
    """

    use_required_attribute = False

    def __init__(self, rule: RuleRecord, data: Any = None) -> None:
        super().__init__(data, prefix="caller", label_suffix="")
        self._names = tuple(rule.partition_by)
        self._falls_back = rule.missing_partition == "ip" and _FALLBACK not in self._names
        for name in (*self._names, *((_FALLBACK,) if self._falls_back else ())):
            label = capfirst(label_of(name))
            widget = forms.PasswordInput if name == "api_key" else forms.TextInput
            attributes = {"autocomplete": "off"}
            self.fields[name] = forms.CharField(
                required=False, label=label, max_length=MAX_TEXT, widget=widget(attributes), strip=False
            )

    @property
    def digest(self) -> str:
        return str(self.cleaned_data["digest"])

    def clean(self) -> dict[str, Any]:
        """Compute the digest in the same way as for a request of this caller."""
        typed = {name: value for name, value in self.cleaned_data.items() if value}
        names = (_FALLBACK,) if self._falls_back and typed.keys() == {_FALLBACK} else self._names
        missing = [name for name in names if name not in typed]
        if missing:
            raise ValidationError(_("Fill in all of these: %s.") % ", ".join(label_of(name) for name in names))
        try:
            identity = identify(_request_of(typed))
        except UnknownCaller as error:
            raise ValidationError({"user": str(error)}) from error
        parts = [(name, self._value(identity, name, typed[name])) for name in names]
        if not self.errors:
            self.cleaned_data["digest"] = digest(encode_partition(parts))
        return self.cleaned_data

    def _value(self, identity: Identity, name: str, typed: str) -> str:
        if name not in ("user", "api_key") and not is_address(name):
            return spelled(name, typed)
        value = identity.value(name)
        if value is None:
            self.add_error(
                name, _("This is not an IP address.") if is_address(name) else _("No user or API key matches this.")
            )
        return value or ""


def form_for(rule: str | None, data: Any = None) -> CallerForm | None:
    """Return the form of a current rule; `None` for others, and if all callers share one counter."""
    record = next((each for each in cache.current_rules().rules if each.slug == rule), None)
    return CallerForm(record, data) if record is not None and record.partition_by else None


def _request_of(typed: dict[str, str]) -> HttpRequest:
    """Return a request of this caller, so that the same code finds its values."""
    request = HttpRequest()
    address = next((value for name, value in typed.items() if is_address(name)), "")
    request.META["REMOTE_ADDR"] = address.strip().partition("/")[0]
    if "api_key" in typed:
        request.META[f"HTTP_{settings.API_KEY_HEADER.upper().replace('-', '_')}"] = typed["api_key"]
    if "user" in typed:
        request.user = find_user(typed["user"].strip())
    return request
