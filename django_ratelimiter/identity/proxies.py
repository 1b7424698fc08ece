"""The client's address behind trusted proxies.

The client's address is found by walking from the peer that is connected to us towards the client: first
REMOTE_ADDR, then X-Forwarded-For from its right end. As long as a hop is trusted (TRUSTED_PROXIES), the hop that
it reports is looked at; the first one that is not trusted is the client. A hop that is no address (garbage,
`unknown`, an empty part) ends the walk: what counts is the nearest address known for certain, which is the
trusted hop that reported it. So does the end of the list. Whatever stands left of the client is never read, so
that nobody can choose an address by sending the header.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from django.http import HttpRequest

from ..conf import TrustedProxies, settings

#: The longest way to write an address with zone and port; longer parts are not looked at.
_MAX_ADDRESS: Final = 80
#: What servers call the peer on a Unix socket.
_UNIX_PEERS: Final = ("", "unix:")

Address = IPv4Address | IPv6Address

_V4_WITH_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}", re.ASCII)
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[^\]]+)?)\](?::[0-9]{1,5})?", re.ASCII)


def client_ip(request: HttpRequest) -> str | None:
    """The client's address (see the top of this module), cut to its prefix; `None` if none is known."""
    client: str | None = request.META.get("REMOTE_ADDR") or ""
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR")
    if forwarded:
        client = _walk(client or "", forwarded, settings.TRUSTED_PROXIES)
    return None if client is None else _prefix_of(client, settings.IPV4_PREFIX, settings.IPV6_PREFIX)


def _walk(peer: str, forwarded: str, trusted: TrustedProxies) -> str | None:
    """The hop that is the client, as it was written; `None` if no hop on the way to it has an address."""
    hop, certain, end, passed = peer, None, len(forwarded), 0
    while True:
        if passed == 0 and hop in _UNIX_PEERS:
            if not (trusted.unix or trusted.hops):
                return None
        elif _parse(hop) is None:
            return certain
        else:
            certain = hop
            if passed >= trusted.hops and not _is_trusted(hop, trusted):
                return certain
        if end < 0:
            return certain
        comma = forwarded.rfind(",", 0, end)
        hop, end, passed = forwarded[comma + 1 : end].strip(" \t")[: _MAX_ADDRESS + 1], comma, passed + 1


@lru_cache(maxsize=4096)
def _parse(text: str) -> Address | None:
    """The address in `text`, which may have a port, brackets or a zone; `None` if it is none.

    An IPv4 address mapped into IPv6 is the IPv4 address. A zone is dropped: it names the server's own interface.
    """
    if len(text) > _MAX_ADDRESS:
        return None
    match = _V4_WITH_PORT.fullmatch(text) or _BRACKETED.fullmatch(text)
    bare, percent, zone = (match[1] if match else text).partition("%")
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    if percent and (not zone or address.version == 4):
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


@lru_cache(maxsize=4096)
def _is_trusted(text: str, trusted: TrustedProxies) -> bool:
    address = _parse(text)
    return address is not None and any(address in network for network in trusted.networks)


@lru_cache(maxsize=4096)
def _prefix_of(text: str, ipv4_prefix: int, ipv6_prefix: int) -> str | None:
    """The address in `text`, or its network as "ADDRESS/PREFIX" where the prefix is shorter than the address."""
    address = _parse(text)
    if address is None:
        return None
    prefix = ipv4_prefix if address.version == 4 else ipv6_prefix
    free_bits = address.max_prefixlen - prefix
    if free_bits == 0:
        return str(address)
    return f"{type(address)(int(address) >> free_bits << free_bits)}/{prefix}"
