"""Readers for the settings of `RATELIMITER`: each reads one type of value; its ValueError says what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final, TypeVar

from ..values.access import network_of
from ..values.partitions import IDENTITIES, is_identity

T = TypeVar("T")

#: The pattern of a dotted path.
DOTTED: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"

#: The families of response fields that are sent.
HEADER_FAMILIES: Final = ("ratelimit", "x-ratelimit")
#: The possible values in HEADERS; "expose" lets scripts of other origins read the fields.
HEADER_SWITCHES: Final = (*HEADER_FAMILIES, "expose")

#: The request headers in which proxies report the caller.
FORWARDED_FIELDS: Final = ("x-forwarded-for", "forwarded")
_ADDRESS_FIELD: Final = re.compile(r"[a-z0-9-]+-[a-z0-9]*(ip|ipv6|address|for)", re.IGNORECASE)
#: Maximum number of proxies; a higher number would let callers choose their address.
MAX_PROXIES: Final = 20

#: Default number of days for which usage is kept, by granularity, addresses of callers in it, and versions of the rule
#: set.
RETENTION: Final[dict[str, int | None]] = {"minute": 8, "hour": 100, "day": 800, "addresses": 62, "version": 365}


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: it is a cache key on the request path
class TrustedProxies:
    """The proxies that are trusted to report the caller's address.

    hops: this many right-most hops are always trusted; 0 = use the other fields.
    networks: proxies with an address in one of these are trusted. unix: a peer on a Unix socket is trusted.
    field: the header that they write, in lower case; `None` = "x-forwarded-for" or "forwarded", the first that is
    present. own: the name in META of a header that is neither.
    """

    hops: int = 0
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    unix: bool = False
    field: str | None = None
    own: str | None = None


def flag(value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def number(minimum: float, maximum: float, right: str, *, above: bool = False) -> Callable[[Any], float]:
    """Return a reader of numbers from `minimum` to `maximum`; above: without `minimum`. right: the error's text."""

    def read(value: Any) -> float:
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        if not usable or not minimum <= value <= maximum or (above and value == minimum):  # also False for NaN
            raise ValueError(right)
        return float(value)

    return read


def whole_number(minimum: int, maximum: int) -> Callable[[Any], int]:
    """Return a reader of whole numbers in this range."""

    def read(value: Any) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return value

    return read


def text(pattern: str, right: str) -> Callable[[Any], str]:
    """Return a reader of texts that match the whole pattern. right: the error's text."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(right)
        return value

    return read


def optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a reader of None, or of what `read` reads."""
    return lambda value: None if value is None else read(value)


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a reader of one of these words."""

    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(" or ".join(map(repr, words)))
        return str(value)

    return read


def paths(value: Any) -> tuple[str, ...]:
    """Return path prefixes."""
    if not isinstance(value, list | tuple) or not all(isinstance(p, str) and p.startswith("/") for p in value):
        raise ValueError('None, or a list of path prefixes, each starting with "/", such as ["/health/"]')
    return tuple(value)


def families(value: Any) -> tuple[str, ...]:
    """Return families of response fields."""
    if not isinstance(value, list | tuple) or not all(family in HEADER_SWITCHES for family in value):
        raise ValueError(f"a list of any of {', '.join(map(repr, HEADER_SWITCHES))}")
    return tuple(value)


def proxies(value: Any) -> TrustedProxies:
    """Return the trusted proxies from networks, "unix", the number of proxies, and the header that they write."""
    if type(value) is int:
        value = [value] if value else []
    if not isinstance(value, list | tuple):
        raise ValueError('a list of networks, such as ["10.0.0.0/8", "unix"], or the number of proxies')
    fields = [item.lower() for item in value if _is_field(item)]
    hops = [item for item in value if type(item) is int]
    networks = tuple(
        _network(item) for item in value if item != "unix" and not _is_field(item) and type(item) is not int
    )
    own = next((f"HTTP_{field.upper().replace('-', '_')}" for field in fields if field not in FORWARDED_FIELDS), None)
    if own and not (hops or networks or "unix" in value):
        raise ValueError(f"the proxies that write {fields[0]}, and that header")
    if len(fields) > 1 or len(hops) > 1 or (hops and networks) or not all(1 <= count <= MAX_PROXIES for count in hops):
        raise ValueError(
            f"a list of networks, or the number of proxies up to {MAX_PROXIES}; "
            "and beside either one header at most, such as 'x-forwarded-for', 'forwarded' or 'cf-connecting-ip'"
        )
    return TrustedProxies(sum(hops), networks, "unix" in value, fields[0] if fields else None, own)


def _is_field(item: Any) -> bool:
    """Return whether this is the name of a header with an address, such as CF-Connecting-IP, and not a proxy's."""
    return isinstance(item, str) and (item in FORWARDED_FIELDS or _ADDRESS_FIELD.fullmatch(item) is not None)


def _network(value: Any) -> IPv4Network | IPv6Network:
    try:
        network = network_of(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(
            'networks such as "10.0.0.0/8" or "::1", or "unix", or a header whose name ends in "ip", "ipv6", "address" '
            f'or "for" ({value!r}: {error})'
        ) from None
    if network.prefixlen == 0:
        raise ValueError(f"networks of your own proxies: {value} is everybody, so callers could choose their address")
    return network


def retention(value: Any) -> dict[str, int | None]:
    """Return days by granularity, and of versions; missing names get their default."""
    if not isinstance(value, dict) or not all(
        name in RETENTION and (days is None or (type(days) is int and 1 <= days <= 36_500))
        for name, days in value.items()
    ):
        raise ValueError(
            'a dict such as {"minute": 8, "hour": 100, "day": None, "addresses": 62, "version": 365}, '
            "in days from 1 to 36500; None = forever"
        )
    return RETENTION | value


def identity_names(value: Any) -> tuple[str, ...]:
    """Return the names of identities, each once."""
    if not isinstance(value, list | tuple) or not all(map(is_identity, value)):
        raise ValueError('a list of identities, such as ["user", "ip", "header:X-Org"], or [] for none')
    return tuple(dict.fromkeys(value))


def trusted_identities(value: Any) -> tuple[str, ...]:
    """Return the names of identities whose values callers cannot choose."""
    names = identity_names(value)
    if any(name.startswith(("path:", "field:", "query:", "cookie:")) for name in names):
        raise ValueError(
            'a list of request headers, "host" and identities of your own; callers choose paths, fields, parameters '
            "and cookies"
        )
    return names


def fields_of_bodies(value: Any) -> tuple[str, ...]:
    """Return the names of identities of the body."""
    names = identity_names(value)
    if not all(name.startswith("field:") for name in names):
        raise ValueError('a list of fields of the body, such as ["field:code"]')
    return names


def identities(value: Any) -> dict[str, str]:
    """Return the dotted paths of a project's own identities, by name."""
    right = 'a dict of names that are free, such as {"tenant": "shop.limits.tenant_of"}, with dotted paths of callables'
    if not isinstance(value, dict):
        raise ValueError(right)
    for name, path in value.items():
        free = is_identity(name) and name not in IDENTITIES and ":" not in name
        if not free or not isinstance(path, str) or not re.fullmatch(DOTTED, path):
            raise ValueError(right)
    return dict(value)
