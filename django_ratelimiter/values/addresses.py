"""Addresses of Redis servers: what is wrong with one, and what of it may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

#: What the addresses that redis-py reads begin with.
_BEGINNINGS: Final = ("redis://", "rediss://", "unix://")
_IN_WORDS: Final = "redis://, rediss:// or unix://"
_CREDENTIALS: Final = ("username", "password")
#: What would be right instead of a wrong address.
ADVICE: Final = (
    f"Begin it with {_IN_WORDS}, and percent-encode the special characters of its user and password, such as / as "
    "%2F, ? as %3F, # as %23, @ as %40 and , as %2C."
)


def addresses_of(cache: Mapping[str, Any]) -> list[str]:
    """Return the addresses in LOCATION of an entry of CACHES, the master's first."""
    location = cache.get("LOCATION") or ""
    if isinstance(location, str):
        return re.split("[,;]" if str(cache.get("BACKEND")).startswith("django.core.") else ",", location)
    return list(map(str, location))


def wrong_address(address: str, *, any_scheme: bool = False) -> str:
    """Return what is wrong with an address, without any part of it; "" = nothing.

    any_scheme: it may begin with something else, which a connection factory of the project can read.
    """
    if not address.startswith(_BEGINNINGS):
        return "" if any_scheme else f"does not begin with {_IN_WORDS}"
    return "" if _is_readable(address) else "cannot be read as an address"


def shown_address(address: str) -> str:
    """Return an address without user, password and parameters; "" if it is wrong."""
    if wrong_address(address):
        return ""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _is_readable(address: str) -> bool:
    """Return whether it can be parsed, and an @ is only where a parser expects one: else it ends a cut password."""
    try:
        parts = urlsplit(address)
        _port = parts.port  # parsed only when it is read
    except ValueError:
        return False
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = [parts.fragment, *(text for pair in pairs if pair[0] not in _CREDENTIALS for text in pair)]
    if parts.scheme != "unix" or (parts.netloc and "@" not in parts.netloc):
        given.append(parts.path)
    return "@" not in "".join(given)
