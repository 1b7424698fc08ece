"""Errors in a rules file, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from django.utils.translation import gettext as _


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
        return f"{file}:{self.place.line}:{self.place.column}: {self.text}"


class WrongFile(Exception):
    """A rules file that is not applied. Its text has one line for each fault."""

    def __init__(self, file: str, faults: Iterable[Fault]) -> None:
        self.file = file
        self.faults: Sequence[Fault] = sorted(set(faults))
        super().__init__("\n".join(fault.in_words(file) for fault in self.faults))


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """Return a sentence with the word of `known` that is most similar, else with all of them."""
    names = [str(name) for name in known]
    close = get_close_matches(str(word), names, n=1)
    if close:
        return _("Did you mean %(name)s?") % {"name": close[0]}
    return _("Choose from %(names)s.") % {"names": ", ".join(names)} if names else ""
