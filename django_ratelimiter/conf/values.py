"""Readers for the settings of `RATELIMITER`: each reads one type of value; its ValueError says what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final, TypeVar

from ..values.access import network_of
from ..values.partitions import IDENTITIES, is_identity

T = TypeVar("T")

#: The pattern of a dotted path.
DOTTED: Final = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"

#: What attributes of a caller can be read from, and with its customer; see `is_attribute_path`.
CALLERS: Final = ("user", "api_key")
SUBJECTS: Final = (*CALLERS, "customer")

#: The families of response fields that are sent.
HEADER_FAMILIES: Final = ("ratelimit", "x-ratelimit")
#: The possible values in HEADERS; "expose" lets scripts of other origins read the fields.
HEADER_SWITCHES: Final = (*HEADER_FAMILIES, "expose")

#: The request headers in which proxies report the caller.
FORWARDED_FIELDS: Final = ("x-forwarded-for", "forwarded")
_ADDRESS_FIELD: Final = re.compile(r"[a-z0-9-]+-[a-z0-9]*(ip|ipv6|address|for)", re.IGNORECASE)
#: Maximum number of proxies; a higher number would let callers choose their address.
MAX_PROXIES: Final = 20

#: Default number of days for which usage is kept, by granularity, exact usage of callers, addresses in both, and
#: versions of the rule set.
RETENTION: Final[dict[str, int | None]] = {
    "minute": 8, "hour": 100, "day": 800, "callers": 800, "addresses": 62, "version": 365
}  # fmt: skip


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


def checked(right: str, is_right: Callable[[Any], bool], read: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a reader of the values for which `is_right` returns True. right: the error's text. read: converts them."""

    def read_checked(value: Any) -> T:
        if not is_right(value):
            raise ValueError(right)
        return read(value)

    return read_checked


def number(minimum: float, maximum: float, right: str, *, above: bool = False) -> Callable[[Any], float]:
    """Return a reader of numbers from `minimum` to `maximum`; above: without `minimum`. right: the error's text."""

    def is_right(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and minimum <= value <= maximum and not (above and value == minimum)  # also False for NaN

    return checked(right, is_right, float)


def whole_number(minimum: int, maximum: int) -> Callable[[Any], int]:
    """Return a reader of whole numbers in this range."""
    right = f"a whole number from {minimum} to {maximum}"
    return checked(right, lambda value: type(value) is int and minimum <= value <= maximum, int)


def text(pattern: str, right: str) -> Callable[[Any], str]:
    """Return a reader of texts that match the whole pattern. right: the error's text."""
    return checked(right, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None, str)


def optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Return a reader of None, or of what `read` reads."""
    return lambda value: None if value is None else read(value)


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a reader of one of these words."""
    return checked(" or ".join(map(repr, words)), words.__contains__, str)


def list_of(is_right: Callable[[Any], bool], right: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of lists of such values, each once. right: the error's text."""
    return checked(
        right,
        lambda value: isinstance(value, list | tuple) and all(map(is_right, value)),
        lambda value: tuple(dict.fromkeys(value)),
    )


flag: Final = checked("True or False", lambda value: isinstance(value, bool), bool)
paths: Final = list_of(
    lambda path: isinstance(path, str) and path.startswith("/"),
    'None, or a list of path prefixes, each starting with "/", such as ["/health/"]',
)
families: Final = list_of(HEADER_SWITCHES.__contains__, f"a list of any of {', '.join(map(repr, HEADER_SWITCHES))}")
identity_names: Final = list_of(
    is_identity, 'a list of identities, such as ["user", "ip", "header:X-Org"], or [] for none'
)
trusted_identities: Final = list_of(
    lambda name: is_identity(name) and not name.startswith(("path:", "field:", "query:", "cookie:")),
    'a list of request headers, "host" and identities of your own; callers choose paths, fields, parameters and '
    "cookies",
)
fields_of_bodies: Final = list_of(
    lambda name: is_identity(name) and name.startswith("field:"),
    'a list of fields of the body, such as ["field:code"]',
)


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


def _is_retention(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name in RETENTION and (days is None or (type(days) is int and 1 <= days <= 36_500))
        for name, days in value.items()
    )


retention: Final = checked(
    'a dict such as {"minute": 8, "hour": 100, "day": None, "callers": 800, "addresses": 62, "version": 365}, in days '
    "from 1 to 36500; None = forever",
    _is_retention,
    lambda value: RETENTION | value,  # missing names get their default
)


def _is_dotted(path: Any) -> bool:
    return isinstance(path, str) and re.fullmatch(DOTTED, path) is not None


def is_attribute_path(path: str, subjects: Sequence[str] = SUBJECTS) -> bool:
    """Return whether this is a path of attributes, such as "user.profile.plan", and not the dotted path of a callable.

    subjects: what it can begin with.
    """
    return path.partition(".")[0] in subjects


_customer_paths: Final = list_of(
    lambda path: path in CALLERS or _is_dotted(path),
    'None, a path such as "user.account", the dotted path of a callable, or a list of these',
)


def customers(value: Any) -> tuple[str, ...]:
    """Return the paths that lead to a caller's customer; none if there are no customers."""
    return _customer_paths([] if value is None else [value] if isinstance(value, str) else value)


def _are_identities(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_identity(name) and name not in IDENTITIES and ":" not in name and _is_dotted(path)
        for name, path in value.items()
    )


identities: Final = checked(
    f'a dict such as {{"tenant": "shop.limits.tenant_of"}}: names other than {", ".join(IDENTITIES)}, and dotted paths',
    _are_identities,
    dict[str, str],
)
