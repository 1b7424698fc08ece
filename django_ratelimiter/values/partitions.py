"""Identities that rules can be split by, and partitions as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

#: Identities with short values, which nobody can send for another caller.
PROVEN: Final = ("user", "ip", "api_key", "customer", "session")
#: Identities that rules can be split by, besides those in `is_identity`.
IDENTITIES: Final = (*PROVEN, "host")
#: Identities of which a rule by one alone can count every caller exactly.
EXACT: Final = ("customer", "user", "api_key", "ip")
#: The form of identities with a name: a request header, a captured part of the path, a field of the body, a parameter
#: of the query, a cookie; and of the network of this many bits around the address.
NAMED: Final = ("header:NAME", "path:NAME", "field:NAME", "query:NAME", "cookie:NAME", "ip/BITS")

#: The partition of all requests whose body cannot be read. Other partitions begin with a name and ":".
UNREADABLE_BODY: Final = "unreadable"

#: Longer values are replaced by their SHA-256.
MAX_VALUE: Final = 200

_IDENTITY: Final = re.compile(
    r"(?!(?:header|path|field|query|cookie)\Z)[A-Za-z_][A-Za-z0-9_]{0,63}"
    r"|ip/(?:[1-9][0-9]?|1[01][0-9]|12[0-8])"
    r"|header:[A-Za-z0-9_-]{1,100}|path:[A-Za-z_][A-Za-z0-9_]{0,99}|(?:field|query):[^\s|%:]{1,100}"
    r"|cookie:[A-Za-z0-9!#$&'*+.^_`~-]{1,100}"
)


def is_identity(name: object) -> bool:
    """Return whether rules can be split by this: one of IDENTITIES, one like "header:NAME", or a project's own name.

    The project's own names (the setting IDENTITIES) are not known here: any identifier is accepted.
    """
    return isinstance(name, str) and _IDENTITY.fullmatch(name) is not None


def is_address(name: str) -> bool:
    """Return whether the value of this name is the caller's address, or a network around it."""
    return name.partition("/")[0] == "ip"


def may_need_user(name: str) -> bool:
    """Return whether the value of this name may depend on the logged-in user, as with a project's own code."""
    return name in ("user", "customer") or (name not in IDENTITIES and name.isidentifier())


def encode_partition(parts: Iterable[tuple[str, str]]) -> str:
    """Return the partition of these names and values. Different names or values give different partitions.

    A name contains neither "|" nor "%", and a ":" only as in NAMED, so the start of its value is always clear; in
    values both are escaped.
    """
    return "|".join([f"{name}:{_escaped(value)}" for name, value in parts])


def partition_names(value: str) -> tuple[str, ...]:
    """Return the names of a partition's parts: ("user", "header:X-Org") for "user:7|header:X-Org:acme".

    A part that lacks a value has the name "".
    """
    return tuple(map(_name, value.split("|")))


def value_in(partition: str) -> str:
    """Return the value of a partition by one name."""
    value = partition.removeprefix(f"{_name(partition)}:")
    return value.replace("%7C", "|").replace("%25", "%")


def _name(part: str) -> str:
    name, _, value = part.partition(":")
    if f"{name}:NAME" in NAMED:
        own, _, value = value.partition(":")
        name = f"{name}:{own}"
    return name if value else ""


def _escaped(value: str) -> str:
    if len(value) > MAX_VALUE:  # "%s" is not an escape, so that it cannot be a short value
        return f"%sha256-{sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()}"
    if "|" in value or "%" in value:
        return value.replace("%", "%25").replace("|", "%7C")
    return value
