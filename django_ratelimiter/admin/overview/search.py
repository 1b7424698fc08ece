"""One search field for customers, users, API keys, addresses, rules and paths, and the page behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters

from ...conf import is_alias, settings
from ...customers import customer_model, key_model, row_of, value_of
from ...exceptions import EngineUnavailable
from ...inspection.caller import RESOLVED, UnknownCaller, by_key, caller_of, find_user
from ...inspection.references import digests_of, known_rules, name_of, rules_of
from ...models import Rule, TierAssignment
from ...rules.tiers import is_known_api_key
from ...tenants import row_key, rows_named
from ...values.bounds import MAX_SEARCH
from ...values.references import parse_reference
from ..pages import show
from ..viewer import Viewer

#: Maximum number of results of one kind.
MAX_MATCHES: Final = 10

#: Maximum number of rows that are searched for a part of a text, the latest ones.
MAX_SEARCHED: Final = 200_000

#: Possible prefixes before a ":" that select the kind. No session: its key opens it, and URLs are logged.
KINDS: Final = ("customer", "user", "api_key", "ip", "rule", "partition")

_METHOD: Final = re.compile(r"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) +(?=/|https?://)", re.IGNORECASE)
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{22}")


class Match(NamedTuple):
    """A possible meaning of a text. kind: as text. url: its page."""

    kind: str
    name: str
    url: str


_Finder = Callable[[str, Viewer], Iterable[Match]]


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
    kinds, part = _kinds_in(text)
    return _matches(kinds or _EXACTLY, part, viewer, _FINDERS) or _matches(kinds, part, viewer, _FINDERS_OF_PARTS)


def suggest(text: str, viewer: Viewer) -> list[Match]:
    """Return the pages of which a part is typed: by names and reasons, whole ones first. No key finds anything."""
    kinds, part = _kinds_in(text.strip())
    if not 2 <= len(part) <= 100 or "\0" in part:
        return []
    return _matches(kinds, part, viewer, _FINDERS_OF_NAMES, _FINDERS_OF_PARTS)[:MAX_MATCHES]


def _kinds_in(text: str) -> tuple[tuple[str, ...], str]:
    """Return the kind that the text names, if it does, and what is searched for."""
    kind, colon, rest = text.partition(":")
    return ((kind,), rest.strip()) if colon and kind in KINDS and rest.strip() else ((), text)


def _matches(kinds: Iterable[str], text: str, viewer: Viewer, *finders: Mapping[str, _Finder]) -> list[Match]:
    """Return what these finders find, each page once. kinds: empty = all."""
    found: dict[str, Match] = {}
    chosen = (each[kind] for each in finders for kind in kinds or each if kind in each)
    for match in (match for finder in chosen for match in finder(text, viewer)):
        if match.url:
            found.setdefault(match.url, match)
    return [*found.values()]


def _partition(text: str, viewer: Viewer) -> Match:
    """Return the page of a partition. Its URL contains no keys of sessions and APIs."""
    url = viewer.caller_url("partition", text)
    with suppress(UnknownCaller):  # the page shows the error
        caller = caller_of("partition", text)
        url = viewer.digest_url(caller.digest) if caller.is_secret else url
    return Match(_("Caller"), text, url)


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


def _rules(text: str, viewer: Viewer, *, is_whole: bool = True) -> Iterator[Match]:
    """Yield the rules with this slug or name; else those that contain the text there, or name this view or path."""
    meant = Q(slug=text) | Q(name__iexact=text)
    if not is_whole:
        meant = Q(slug__icontains=text) | Q(name__icontains=text) | Q(view_name=text) | Q(path=text)
    for rule in Rule.objects.filter(meant)[:MAX_MATCHES] if viewer.sees_rules else ():
        yield Match(_("Rule"), rule.name, viewer.url("rule_change", rule.pk))


def _exactly(kind: str, text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the user with this login name or primary key, or both; the customer with this key; and who is so named."""
    texts = [text] if text.startswith(("id:", "pk:", "name:")) else [f"name:{text}", f"id:{text}"]
    rows = map(find_user, texts) if kind == "user" else [row_of(text)]
    for row in dict.fromkeys(filter(None, rows)):
        yield _found(kind, row, viewer)
    yield from _named(kind, text, viewer)


def _named(kind: str, text: str, viewer: Viewer, *, is_whole: bool = True) -> Iterator[Match]:
    """Yield the first that the project's own admin finds, for who may see them there. is_whole: by a whole field."""
    model = {"user": get_user_model, "customer": customer_model, "api_key": key_model}[kind]()
    if model is None or not viewer.sees(model) or (kind == "api_key" and model in (get_user_model(), customer_model())):
        return
    request, page = viewer.request, viewer.site.get_model_admin(model)
    if fields := page.get_search_fields(request):  # else it would list all rows
        rows = page.get_queryset(request).order_by("-pk")
        rows = _latest(rows) if "suggest" in request.POST else rows
        rows, may_repeat = _equal(fields, rows, text) if is_whole else page.get_search_results(request, rows, text)
        first = (rows.distinct() if may_repeat else rows)[:MAX_MATCHES]
        for row in sorted(first, key=lambda row: not str(row).lower().startswith(text.lower())):
            yield _found(kind, row, viewer)


def _equal(fields: Iterable[Any], rows: QuerySet[Any], text: str) -> tuple[QuerySet[Any], bool]:
    """Return the rows of which a search field equals the text, and that they may repeat."""
    equal = Q(pk__in=())
    for field in fields:
        compared = Q((f"{str(field).lstrip('^=@')}__iexact", text))
        with suppress(FieldError):  # it cannot be compared so, such as one with a lookup of its own
            rows.filter(compared)
            equal |= compared
    return rows.filter(equal), True


def _found(kind: str, row: Any, viewer: Viewer) -> Match:
    label, value = (_("User"), by_key(row.pk)) if kind == "user" else (_("Customer"), value_of(row))
    if kind == "api_key":
        label, value = capfirst(_("API key")), f"{RESOLVED}{row_key(row)}"
    return Match(label, name_of(viewer.request.user, row) or str(row.pk), viewer.caller_url(kind, value))


def _latest(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return these rows, the latest first, without those that are too old to be searched: no index finds a part."""
    pks = rows.model._default_manager.order_by("-pk").values_list("pk", flat=True)
    oldest = pks[MAX_SEARCHED - 1 : MAX_SEARCHED].first()
    return (rows if oldest is None else rows.filter(pk__gte=oldest)).order_by("-pk")


def _assignments(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the callers of assignments whose reason or partition contains the text; groups are no callers."""
    if not viewer.sees(TierAssignment):
        return
    alike = Q(reason__icontains=text) | Q(partition__icontains=text)
    rows = _latest(TierAssignment.objects.filter(alike, group=None)).prefetch_related("user")
    for row in rows[:MAX_MATCHES]:
        if row.api_key_hash:
            is_caller = settings.API_KEY_RESOLVER is None  # who it is cannot be found out from the hash
            url = viewer.caller_url("api_key", row.api_key_hash) if is_caller else viewer.row_url(row)
            found = capfirst(_("API key")), f"{row.api_key_hash[:8]}…", url
        elif row.user is not None:
            found = _found("user", row.user, viewer)
        else:
            found = _partition(row.partition, viewer)
        kind, name, url = found
        yield Match(kind, f"{row.reason} ({name})" if row.reason else name, url)


def _api_keys(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the API key, if it is known; else rows of this name. Its value is what rules count by, never the key."""
    for row in rows_named([text]).values() if settings.API_KEY_RESOLVER else ():
        if isinstance(row, key_model() or object):
            yield _found("api_key", row, viewer)
    with suppress(UnknownCaller):
        caller = caller_of("api_key", text)
        if settings.API_KEY_RESOLVER is None and not is_known_api_key(caller.value):
            return
        url = viewer.digest_url(caller.digest) if caller.is_secret else viewer.caller_url("api_key", caller.open_value)
        yield Match(capfirst(_("API key")), f"{text[:4]}…", url)
        return
    yield from _named("api_key", text, viewer)


def _digests(text: str, viewer: Viewer) -> Iterator[Match]:
    if _DIGEST.fullmatch(text) or is_alias(text):
        yield Match(_("Caller"), text, viewer.digest_url(text))


def _references(text: str, viewer: Viewer) -> Iterator[Match]:
    """Yield the caller of a rejection's reference; the page that explains, if the caller is not known any more, or now.

    That page tells one from the other.
    """
    reference, digests = parse_reference(text, known_rules()), list[str]()
    if reference is None:
        return
    if viewer.sees_callers:
        with suppress(EngineUnavailable):
            digests = digests_of(reference)
    for digest in digests:
        yield Match(_("Caller"), str(reference), viewer.digest_url(digest, rule=rules_of(reference)[0]))
    if not digests and viewer.sees_rules:
        yield Match(_("Rejection"), str(reference), viewer.url("explain", reference=str(reference)))


_FINDERS: Final[Mapping[str, _Finder]] = {
    "reference": _references,
    "path": _paths,
    "ip": _addresses,
    "rule": _rules,
    "customer": partial(_exactly, "customer"),
    "user": partial(_exactly, "user"),
    "api_key": _api_keys,
    "digest": _digests,
    "partition": lambda text, viewer: [_partition(text, viewer)],
}
#: Those that try a text which names no kind; any text may be a partition.
_EXACTLY: Final = tuple(kind for kind in _FINDERS if kind != "partition")

#: Those for whole names of rows, which are suggested first.
_FINDERS_OF_NAMES: Final = {kind: partial(_named, kind) for kind in ("customer", "user", "api_key")}
#: Those for parts of texts.
_FINDERS_OF_PARTS: Final[Mapping[str, _Finder]] = {
    "rule": partial(_rules, is_whole=False),
    **{kind: partial(_named, kind, is_whole=False) for kind in _FINDERS_OF_NAMES},
    "assignment": _assignments,
}


@method_decorator(sensitive_post_parameters("q"))
def search_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Redirect to the only result, or list several; only suggestions while the text is typed.

    The text is sent in the body: it may be an API key, and URLs are logged.
    """
    viewer = Viewer(request)
    text = request.POST.get("q", "")
    if "suggest" in request.POST:
        found = {"matches": suggest(text, viewer), "most": MAX_MATCHES}
        return TemplateResponse(request, "admin/django_ratelimiter/search_matches.html", found)
    matches = find(text, viewer)
    if len(matches) == 1:
        return HttpResponseRedirect(matches[0].url)
    context = {"matches": matches, "most": MAX_MATCHES, "searched": bool(text.strip()), **viewer.search_context()}
    return show(page_of, request, "search", _("Search"), context)
