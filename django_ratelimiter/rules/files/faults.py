"""Errors in a rules file, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _

from ...values.bounds import MAX_LISTED, closest
from ...values.terminal import visible
from ..formatting import listed

#: Maximum length of an error, which repeats words of the file.
_MAX_TEXT: Final = 500


class Place(NamedTuple):
    """A place in a file, counted from 1."""

    line: int
    column: int


class Fault(NamedTuple):
    """An error at a place, with what would be right."""

    place: Place
    text: str

    def in_words(self, file: str) -> str:
        """Return "ratelimits.yaml:7:5: text"."""
        return visible(f"{file}:{self.place.line}:{self.place.column}: {self.text}")


class TooManyFaults(Exception):
    """Raised at the last error that an answer lists: the rest of the file is not read."""


class Faults(list[Fault]):
    """The errors that were found so far. Adding the last one that is listed raises TooManyFaults."""

    def append(self, fault: Fault) -> None:
        super().append(Fault(fault.place, fault.text[:_MAX_TEXT]))
        if len(self) == MAX_LISTED:
            raise TooManyFaults


class WrongFile(Exception):
    """A rules file that is not applied. Its text has one of `lines` for each fault."""

    def __init__(self, file: str, faults: Iterable[Fault]) -> None:
        self.file = file
        self.faults: Sequence[Fault] = sorted(set(faults))[:MAX_LISTED]
        self.lines = [fault.in_words(file) for fault in self.faults]
        if len(self.faults) == MAX_LISTED:
            self.lines.append(_("Only the first %(count)d faults are listed.") % {"count": MAX_LISTED})
        super().__init__("\n".join(self.lines))


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """Return a sentence with the word of `known` that is most similar, else with the first of them."""
    names = [str(name) for name in known]
    if close := closest(str(word), names):
        return _("Did you mean %(name)s?") % {"name": close}
    return _("Choose from %(names)s.") % {"names": listed(names)} if names else ""


def shown(value: Any) -> str:
    """Return an invalid value as shown in a message."""
    if value is None:
        return _("nothing")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"“{value[:60]}”"
    if isinstance(value, int | Decimal):
        return str(value)
    return _("a list") if isinstance(value, list) else _("a group of fields")
