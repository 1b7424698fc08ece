"""What a request to a caller's page asks about, what of it may stand in addresses, and whom the operator looked up."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, QueryDict

from ...callers.caller import Caller, UnknownCaller, caller_of, open_parts
from ...explain.users import by_key
from ...usage import names
from ...values.partitions import encode_partition, partition_names
from ...values.references import parse_reference

#: What the operator's session keeps: the callers who were looked up, but for those known by a secret.
LOOKED_UP: Final = "ratelimiter_callers"
MAX_LOOKED_UP: Final = 50


def caller_typed(kind: str, text: str) -> Caller:
    """Return the caller whom the form of the search means. Raises UnknownCaller.

    Whatever kind was chosen, a reference or a whole response with one leads to its caller, unless that kind has this.
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
    """Return what else is known of the caller, as partitions: from the address, and from the form that asks for it."""
    known = request.GET.getlist("is")
    sent = [request.GET, request.POST] if "know" in request.POST else [request.GET]
    for data in sent:
        known += [f"{key[3:]}={value}" for key, value in data.dict().items() if key.startswith("is:") and value.strip()]
    return known


def open_query(request: HttpRequest) -> tuple[QueryDict, bool]:
    """Return the address's query with all that is known and is no secret, and whether that is all that is known."""
    parts, is_all = open_parts(known_in(request))
    query = request.GET.copy()
    for key in [key for key in query if key == "is" or key.startswith("is:")]:
        del query[key]
    for name, value in parts.items():
        query[f"is:{name}"] = value
    return query, is_all


def looked_up(request: HttpRequest, digest: str) -> tuple[str, str]:
    """Return kind and value of the caller whom a digest stands for, or those of the digest.

    That is whom this operator has looked up, or whom REVEAL lets this operator know.
    """
    found = request.session.get(LOOKED_UP, {}).get(digest)
    if found is None and request.user.has_perm(names.PERMISSION):
        name = names.revealed([digest]).get(digest)
        found = name and _openly(name)
    kind, value = found or ("digest", digest)
    return kind, value


def _openly(name: names.Name) -> tuple[str, str] | None:
    """Return kind and value of a revealed name; `None` for a key that may stand in no address."""
    if name.kind == "user":
        return "user", by_key(name.value)
    if name.kind == "ip":
        return "ip", name.value
    text = name.value if name.kind == "partition" else encode_partition([(name.kind, name.value)])
    return None if {"session", "api_key"} & set(partition_names(text)) else ("partition", text)


def remember(request: HttpRequest, caller: Caller) -> None:
    """Keep who was looked up in the operator's session, so that their digest in a report leads here."""
    if caller.kind == "digest" or caller.is_secret:
        return
    known, found = dict(request.session.get(LOOKED_UP, {})), [caller.kind, caller.open_value]
    if known.pop(caller.digest, None) != found or len(known) >= MAX_LOOKED_UP:
        known = dict(list(known.items())[1 - MAX_LOOKED_UP :])
        request.session[LOOKED_UP] = {**known, caller.digest: found}
        if caller.kind in caller.known and not caller.is_unknown_user:
            names.remember(caller.digest, caller.kind, caller.known[caller.kind])
