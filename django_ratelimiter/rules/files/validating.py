"""The errors of a document by the schema of rules files, each as a sentence that says what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from django.utils.timezone import get_default_timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...usage.times import aware, end_from, stored
from ...values.bounds import MAX_LIMITS
from .documents import Document, Path, missing
from .faults import Fault, did_you_mean, shown
from .schema import VERSION, limit_fields, schema

_WRONG_KIND: Final = gettext_lazy("Must be %(kind)s, not %(value)s.")

#: What an error says, by the keyword of the schema and the title of the value. The models report the other keywords.
_TEXTS: Final = {
    "type": _WRONG_KIND,
    "format": _WRONG_KIND,
    "pattern": _WRONG_KIND,
    "pattern of a slug": "",  # its model reports it
    "enum": gettext_lazy("%(word)s is unknown."),
    "const": gettext_lazy("Must be %(version)s."),
    "required": gettext_lazy("“%(name)s” is missing."),
    "maxItems": gettext_lazy("A rule has at most %(count)d limits."),
    "anyOf": gettext_lazy("A rules file has “rules”, “tiers” or “access”."),
    "oneOf": gettext_lazy("An access entry needs a “value”, or a “digest” instead of a value."),
    "type of a limit": gettext_lazy("A limit is a group of fields, such as “quota: 100” and “window_seconds: 60”."),
    "type of an access entry": gettext_lazy("An access entry is a group of fields."),
}

#: Types and formats of fields, in words.
_KINDS: Final = {
    "string": gettext_lazy("a text"),
    "boolean": gettext_lazy("true or false"),
    "integer": gettext_lazy("a whole number"),
    "number": gettext_lazy("a number"),
    "array": gettext_lazy("a list of texts"),
    "date-time": gettext_lazy("a date and time, such as “2026-12-31T23:59:59+00:00”"),
}


def faults_of(document: Document) -> Iterator[tuple[Path, Fault]]:
    """Yield the errors, each with the path of its value. Raises LibraryMissing."""
    for error in _validator().iter_errors(document.data):
        path = tuple(error.absolute_path)
        if error.validator == "additionalProperties":
            others = [*error.schema["properties"], *error.schema.get("patternProperties", ())]
            for name in [name for name in error.instance if not any(re.fullmatch(each, name) for each in others)]:
                yield path, Fault(document.keys[*path, name], _unknown_field(name, error.schema))
        elif text := _text(error, path, document.written.get(path)):
            yield path, Fault(document.places[path], text)


def moment(text: str) -> datetime:
    """Return an end as it is stored. Raises ValueError, and OverflowError if it cannot be stored."""
    return stored(aware(end_from(text, get_default_timezone())))  # whoever uploads the file


def _validator() -> Any:
    try:
        from jsonschema import Draft202012Validator, FormatChecker
    except ImportError as error:
        raise missing() from error
    formats = FormatChecker(())
    formats.checks("date-time", (ValueError, OverflowError))(lambda value: not isinstance(value, str) or moment(value))
    return Draft202012Validator(schema(), format_checker=formats)


def _text(error: Any, path: Path, written: str | None) -> str:
    """Return what an error says; empty = the models report it. written: a value that is not a text, as in the file."""
    if path == ("exported_version",):
        return _("exported_version: Must be as `export` writes it, such as 12@1795322634345.")
    title = error.schema.get("title", "")
    text = _TEXTS.get(f"{error.validator} of {title}", _TEXTS.get(error.validator, ""))
    if not text:
        return ""
    value = written or shown(error.instance)
    words = {"kind": _kind(error.schema), "value": value, "word": value, "name": "kind"}  # the only required field
    found = str(text) % {**words, "version": VERSION, "count": MAX_LIMITS}
    if error.validator == "enum":
        found += f" {did_you_mean(error.instance, filter(None, error.validator_value))}"
    elif written and error.validator == "type" and "string" in error.validator_value:
        found += " " + _("Put it in quotes: %(text)s.") % {"text": f'"{written}"'}
    elif not title and error.validator_value == "array" and isinstance(error.instance, str):
        listed = ", ".join(f'"{word.strip()}"' for word in error.instance.split(","))
        found += " " + _("Write %(text)s.") % {"text": f"[{listed}]"}
    names = [name for name in path if isinstance(name, str)]
    return found if title or error.validator == "const" else f"{names[-1]}: {found}"


def _kind(part: dict[str, Any]) -> str:
    """Return a kind of value in words."""
    if title := part.get("title", ""):
        return _(title)
    types = part.get("type", "")
    return str(_KINDS.get(part.get("format") or (types if isinstance(types, str) else types[0]), ""))


def _unknown_field(name: str, group: dict[str, Any]) -> str:
    title = group["title"]
    text = _("%(word)s is not a field of %(what)s.") % {"word": shown(name), "what": _(title)}
    if name in limit_fields() and "limits" in group["properties"]:
        return f"{text} {_('This field belongs in one of the “limits” of the rule.')}"
    return f"{text} {did_you_mean(name, group['properties'])}"
