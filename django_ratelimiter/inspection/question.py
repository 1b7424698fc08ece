"""The question: a request that was not sent, and its caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from django.utils.translation import gettext as _


class QuestionError(ValueError):
    """The question cannot be answered; the text says what would be right. field: of `Question`."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and its caller.

    path: within the site, with or without a query, or a whole URL. view: its name, instead of a path.
    scope: one that code names, besides those that the view is known to name. user: a login name or a primary key.
    api_key: as callers send it, or the hash of a known one. ip: the address that connects to the site. session:
    its key. identities: values that rules are split by, whatever the request contains, by name. status: of the
    response, if the request is allowed: some rules depend on it. gateway: the route of a view for gateways,
    such as "/gateway/"; then the request is for another server, and the response is that of this view.
    """

    method: str = "GET"
    path: str = ""
    view: str = ""
    scope: str = ""
    user: str = ""
    api_key: str = ""
    ip: str = ""
    session: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    identities: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    gateway: str = ""

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
