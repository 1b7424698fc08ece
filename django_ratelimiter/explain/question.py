"""What is asked: a request that nobody has sent, and who would send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from django.utils.translation import gettext as _


class QuestionError(ValueError):
    """The question cannot be answered as it is put; the text says what would be right. field: of `Question`."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and its caller.

    path: within the site, with or without a query; a whole URL will do. view: its name, in the place of a path.
    scope: one that code asks for beside what the view is known to ask for. user: a login name or a primary key.
    api_key: as callers send it, or the hash of a known one. ip: the address that is connected to the site. session:
    its key. identities: values for what rules are split by, whatever the request says, by name. status: of the
    response, if the request is allowed: rules may charge for one kind only. gateway: the route of a view that gateways
    ask, such as "/gateway/"; then the request is for another server, and the answer is that of this view.
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
