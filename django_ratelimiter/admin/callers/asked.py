"""The caller in a request to a caller's page, which of its values may be in URLs, and the operator's last callers."""

from __future__ import annotations

import time
from typing import Any, Final

from django.http import HttpRequest, QueryDict

from ...conf import is_alias
from ...inspection.caller import Caller, UnknownCaller, caller_of, known_by_name, open_key, open_parts
from ...values.digests import alias_of
from ...values.references import parse_reference

#: The key in the operator's session for callers that were looked up, without those identified by a secret.
LOOKED_UP: Final = "ratelimiter_callers"
MAX_LOOKED_UP: Final = 50
LOOKED_UP_SECONDS: Final = 3_600


def caller_typed(kind: str, text: str) -> Caller:
    """Return the caller from the search form. Raises UnknownCaller.

    With any selected kind, a reference, or a whole response with one, finds its caller, unless that kind has this text.
    """
    if kind == "reference" or parse_reference(text) is None:
        return caller_of(kind, text)
    try:
        caller = caller_of(kind, text)
    except UnknownCaller:
        return caller_of("reference", text)
    is_response = len(text.split()) > 1 and kind != "partition"
    return caller_of("reference", text) if is_response or caller.is_unknown_user else caller


def known_in(request: HttpRequest) -> list[str]:
    """Return more known values of the caller, as partitions: from the URL, and from the form that asks for them."""
    known = request.GET.getlist("is")
    sent = [request.GET, request.POST] if "know" in request.POST else [request.GET]
    for data in sent:
        known += [f"{key[3:]}={value}" for key, value in data.dict().items() if key.startswith("is:") and value.strip()]
    return known


def open_query(request: HttpRequest) -> tuple[QueryDict, bool]:
    """Return the URL's query with all known values that are not secret, and whether these are all known values."""
    parts, is_all = open_parts(known_in(request))
    query = request.GET.copy()
    for key in [key for key in query if key == "is" or key.startswith("is:")]:
        del query[key]
    for name, value in parts.items():
        query[f"is:{name}"] = value
    return query, is_all


def looked_up(request: HttpRequest, text: str) -> tuple[str, str]:
    """Return kind and value of the caller of a digest or an alias, or of that itself.

    The caller is known if this operator has looked it up, or if the alias can be read and REVEAL allows it.
    """
    alias = alias_of(text)
    if own := _looked_up(request).get(alias):
        return own[0], own[1]
    return known_by_name(alias, request.user) or ("digest", text if is_alias(text) else alias)


def _looked_up(request: HttpRequest) -> dict[str, list[Any]]:
    """Return kind, value and end by digest of the callers that this operator has looked up; older ones are dropped."""
    stored, now = request.session.get(LOOKED_UP, {}), time.time()
    known = {digest: found for digest, found in stored.items() if found[2:] > [now]}
    if known != stored:
        request.session[LOOKED_UP] = known
    return known


def remember(request: HttpRequest, caller: Caller) -> None:
    """Store the caller in the operator's session for an hour, so that its digest in a report leads to its page."""
    known = dict(_looked_up(request))
    if caller.kind == "digest" or caller.is_secret:
        return
    found = [caller.kind, open_key(caller.value) if caller.kind == "api_key" else caller.open_value]
    if known.pop(caller.digest, [])[:2] != found or len(known) >= MAX_LOOKED_UP:
        known = dict(list(known.items())[1 - MAX_LOOKED_UP :])
        request.session[LOOKED_UP] = {**known, caller.digest: [*found, int(time.time()) + LOOKED_UP_SECONDS]}
