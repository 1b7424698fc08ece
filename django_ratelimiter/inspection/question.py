"""The question: a request that was not sent, and its caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, urlsplit

from django.utils.translation import gettext as _

#: Maximum characters of the short texts of a question, by name.
MAX_LENGTHS: Final = {"method": 20, "path": 4_000, "view": 200, "scope": 100, "user": 200, "api_key": 300}


class QuestionError(ValueError):
    """The question cannot be answered; the text says what would be right. field: of `Question`."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and its caller."""

    method: str = "GET"
    path: str = ""  # of this site, with or without a query, or a URL
    view: str = ""  # the name of a view, instead of a path
    scope: str = ""  # that your code asks for, besides those that the view is known to name
    user: str = ""  # a login name or a primary key
    api_key: str = ""  # as callers send it, or the hash of a known key
    ip: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    identities: Mapping[str, str] = field(default_factory=dict)  # values to count by, whatever the request contains

    @property
    def names_host(self) -> bool:
        """True if it contains the host: in a header, or in a URL of this site."""
        return bool(self.address.netloc) or any(
            name.lower() in ("host", "x-forwarded-host") for name, _value in self.headers
        )

    @property
    def address(self) -> SplitResult:
        """Return the parts of its path or URL. Raises QuestionError."""
        try:
            return urlsplit(self.path.strip())
        except ValueError:
            raise QuestionError("path", _("This is neither a path nor a URL.")) from None


def pairs(texts: Iterable[str], sign: str, field: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values in texts such as "Name: value". Raises QuestionError for this field of a question."""
    found = []
    for text in filter(str.strip, texts):
        if sign == ":" and text.strip().startswith(":"):  # HTTP/2 pseudo-header fields, as browsers show them
            continue
        name, separator, value = text.partition(sign)
        if not separator:
            raise QuestionError(field, _("%(text)r has no “%(sign)s”.") % {"text": text, "sign": sign})
        found.append((name.strip(), value.strip()))
    return tuple(found)
