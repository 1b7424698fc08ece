"""One search field for users, API keys, addresses, rules and paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Q
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...conf import settings
from ...identity import identify
from ...inspection.caller import UnknownCaller, by_key, caller_of
from ...inspection.references import digests_of, find_reference, known_rules, rules_of
from ...models import Rule
from ...values.bounds import MAX_SEARCH
from ...values.references import parse_reference
from ..identities import may_see_names
from ..viewer import Viewer

#: Maximum number of results of one kind.
MAX_MATCHES: Final = 10

#: Possible prefixes before a ":" that select the kind. No session: its key opens it, and URLs are logged.
KINDS: Final = ("user", "api_key", "ip", "rule", "partition")

_METHOD: Final = re.compile(r"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) +(?=/|https?://)", re.IGNORECASE)
_OF_ANOTHER_MODEL: Final = re.compile(r"\w+(?:\.\w+)*\.[A-Z]\w*:.+")
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{22}")


class Match(NamedTuple):
    """A possible meaning of a text. kind: as text. url: its page."""

    kind: str
    name: str
    url: str


def find(text: str, viewer: Viewer) -> list[Match]:
    """Return the pages for this text, the likeliest first; empty = nothing was found.

    Pages that the site lacks are left out. "user:…", "rule:…" and so on search only that kind. A whole
    response to a rejected request, which contains a reference, is accepted as well.
    """
    text = text.strip()
    if not text or "\0" in text:
        return []
    if len(text) > MAX_SEARCH:
        return [match for match in _references(text, viewer) if match.url]
    kind, colon, rest = text.partition(":")
    if colon and kind in KINDS and rest.strip():
        found: Iterable[Match] = _of_kind(kind, rest.strip(), viewer)
    else:
        found = (
            match
            for each in ("reference", "path", "ip", "rule", "user", "api_key", "digest")
            for match in _of_kind(each, text, viewer)
        )
    return [match for match in found if match.url]


def _of_kind(kind: str, text: str, viewer: Viewer) -> Iterator[Match]:
    if kind == "partition":
        yield Match(_("Caller"), text, _partition_url(text, viewer))
        return
    yield from _FINDERS[kind](text, viewer)


def _partition_url(text: str, viewer: Viewer) -> str:
    """Return the URL of a partition's page. It contains no keys of sessions and APIs."""
    try:
        caller = caller_of("partition", text)
    except UnknownCaller:  # the page shows the error
        return viewer.caller_url("partition", text)
    return viewer.digest_url(caller.digest) if caller.is_secret else viewer.caller_url("partition", text)


def _paths(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield a path, a whole URL, or either after a method."""
    found = _METHOD.match(text)
    method, text = (found[1].upper(), text[found.end() :]) if found else ("GET", text)
    if text.startswith(("http://", "https://")):
        try:
            text = urlsplit(text).path or "/"
        except ValueError:
            return
    if text.startswith("/") and viewer.sees_rules:
        yield Match(_("Request"), f"{method} {text}", viewer.url("explain", method=method, path=text))


def _addresses(text: str, viewer: Viewer) -> Iterator[Match]:
    try:
        address = str(ip_address(text))
    except ValueError:
        return
    yield Match(capfirst(_("IP address")), address, viewer.caller_url("ip", address))


def _rules(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the rule with this slug or name; else those that contain the text, or name this view or path."""
    if not viewer.sees_rules:
        return
    exact = Rule.objects.filter(Q(slug=text) | Q(name__iexact=text))
    alike = Q(slug__icontains=text) | Q(name__icontains=text) | Q(view_name=text) | Q(path=text)
    rows = list(exact[:MAX_MATCHES]) or list(Rule.objects.filter(alike)[:MAX_MATCHES])
    for rule in rows:
        yield Match(_("Rule"), rule.name, viewer.url("rule_change", rule.pk))


def _users(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the users with this login name, e-mail address or primary key; "id:42" is only a primary key.

    Also a caller of another model, such as "shop.Device:7".
    """
    if _OF_ANOTHER_MODEL.fullmatch(text):
        yield Match(_("Caller"), text, viewer.caller_url("user", by_key(text)))
    sees_names = may_see_names(viewer.request.user)
    for user in _users_of(text):
        name = user.get_username() if sees_names else str(user.pk)
        yield Match(_("User"), name, viewer.caller_url("user", by_key(user.pk)))


def _users_of(text: str) -> list[Any]:
    model = get_user_model()
    known_by = Q(**{model.USERNAME_FIELD: text})
    email = getattr(model, "EMAIL_FIELD", "")
    if email and any(field.name == email for field in model._meta.concrete_fields):
        known_by |= Q(**{f"{email}__iexact": text})
    users = model._default_manager.order_by("pk")
    prefix, colon, rest = text.partition(":")
    is_key = bool(colon) and prefix in ("id", "pk")
    found = [] if is_key else list(users.filter(known_by)[:MAX_MATCHES])
    try:
        keyed = list(users.filter(pk=rest if is_key else text)[:1])
    except (ValueError, ValidationError, OverflowError):  # not a valid primary key
        keyed = []
    return list(dict.fromkeys([*found, *keyed]))


def _api_keys(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the API key, if it is known. Its value is the identity that rules count by, never the key itself."""
    request = HttpRequest()
    request.META[f"HTTP_{settings.API_KEY_HEADER.upper().replace('-', '_')}"] = text
    value = identify(request).value("api_key")
    if value is not None:
        caller = caller_of("api_key", text)
        url = viewer.digest_url(caller.digest) if caller.is_secret else viewer.caller_url("api_key", caller.open_value)
        yield Match(capfirst(_("API key")), f"{text[:4]}…", url)


def _digests(text: str, viewer: Viewer) -> Iterator[Match]:
    if _DIGEST.fullmatch(text):
        yield Match(_("Caller"), text, viewer.digest_url(text))


def _references(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the caller of a rejection's reference; the page that explains, if the caller is not known any more."""
    reference = find_reference(text) if viewer.sees_callers else parse_reference(text, known_rules())
    if reference is None:
        return
    digests = digests_of(reference) if viewer.sees_callers else []
    for digest in digests:
        yield Match(_("Caller"), str(reference), viewer.digest_url(digest, rule=rules_of(reference)[0]))
    if not digests and viewer.sees_rules:
        yield Match(_("Rejection"), str(reference), viewer.url("explain", reference=str(reference)))


_FINDERS: Final[dict[str, Callable[[str, Viewer], Iterator[Match]]]] = {
    "reference": _references,
    "path": _paths,
    "ip": _addresses,
    "rule": _rules,
    "user": _users,
    "api_key": _api_keys,
    "digest": _digests,
}
