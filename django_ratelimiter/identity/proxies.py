"""The caller's address behind trusted proxies.

It is found by going from the connected peer towards the caller: first REMOTE_ADDR, then
X-Forwarded-For or Forwarded (RFC 7239) from its right end. As long as a hop is trusted (TRUSTED_PROXIES), the hop that
it reports is examined; the first hop that is not trusted is the caller. A hop that is not an address (garbage,
`unknown`, a made-up name, an empty part) ends the search, and so does the end of the list. Then the caller is the
nearest certain address: the trusted hop that reported it. Anything left of the caller is never read, so callers
cannot choose an address by sending the header.

Only one header is read: the one that TRUSTED_PROXIES names, such as X-Forwarded-For, Forwarded or CF-Connecting-IP,
else X-Forwarded-For if it is present, else Forwarded.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import inet_aton, inet_ntoa
from typing import Final, NamedTuple

from django.http import HttpRequest

from ..conf import settings
from ..conf.values import TrustedProxies

#: The longest form of an address with zone and port; longer parts are not parsed.
_MAX_ADDRESS: Final = 80
#: Maximum length of a header whose caller is cached: usually it names a few hops.
_MAX_CACHED: Final = 200
#: Maximum length of a parsed element of Forwarded; it may contain the host and more.
_MAX_ELEMENT: Final = 1_000
#: Servers' names for the peer on a Unix socket; waitress uses "localhost".
_UNIX_PEERS: Final = ("", "unix:", "localhost")

Address = IPv4Address | IPv6Address

#: Their addresses end with an IPv4 address: IPv4-compatible ones, NAT64 (RFC 6052), NAT64 of one site (RFC 8215).
_ENDING_IN_IPV4: Final = tuple(map(IPv6Network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48")))

_PORT: Final = r":(?:[0-9]{1,5}|_[A-Za-z0-9._-]{1,20})"
_V4_WITH_PORT = re.compile(rf"([0-9.]+){_PORT}", re.ASCII)
_BRACKETED = re.compile(rf"\[([0-9A-Fa-f:.]+(?:%[^\]]+)?)\](?:{_PORT})?", re.ASCII)
#: One pair of Forwarded. An unquoted value may be any text without separators: some proxies do not quote IPv6.
_PAIR = re.compile(r'[ \t]*([A-Za-z0-9_-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";,\\]*))[ \t]*(?:;|\Z)')


def client_ip(request: HttpRequest) -> str | None:
    """Return the caller's address, masked to its prefix; `None` if none is known."""
    peer, forwarded, in_pairs = reported(request)
    find = _network_of if len(forwarded) <= _MAX_CACHED else _network_of.__wrapped__
    return find(peer, forwarded, in_pairs, settings.TRUSTED_PROXIES, settings.IPV4_PREFIX, settings.IPV6_PREFIX)


def client_address(request: HttpRequest) -> str | None:
    """Return the whole address of the caller; `None` if none is known."""
    caller = _caller(request)
    address = None if caller is None else _parse(caller)
    return None if address is None else str(address)


def network_around(address: str | None, name: str) -> str | None:
    """Return the network around an address by a name such as "ip/48": up to 32 bits of IPv4, more of IPv6."""
    bits = int(name.removeprefix("ip/"))
    counted = None if address is None else _counted(address)
    if address is None or counted is None or (bits > 32) != (counted.version == 6):
        return None
    return _network_of(address, "", False, settings.TRUSTED_PROXIES, min(bits, 32), bits)


def is_trusted_peer(request: HttpRequest) -> bool:
    """Return whether the connected peer is a trusted proxy."""
    peer, trusted = request.META.get("REMOTE_ADDR") or "", settings.TRUSTED_PROXIES
    if trusted.hops:
        return True
    return trusted.unix if peer in _UNIX_PEERS else _is_trusted(peer, trusted)


def is_proxy(address: str) -> bool:
    """Return whether an address is in one of the networks of TRUSTED_PROXIES."""
    trusted = settings.TRUSTED_PROXIES
    return bool(trusted.networks) and _is_trusted(address, trusted)


def is_peer(text: str) -> bool:
    """Return whether this may be REMOTE_ADDR: an address, or a server's name for the peer on a Unix socket."""
    return text in _UNIX_PEERS or _is_plain(text) or _parse(text) is not None


class Forwarding(NamedTuple):
    """The address that counts as the caller of a request, but names another one.

    proxy: the address for TRUSTED_PROXIES; "" = a public one, which may be a real caller's and is shown to nobody.
    With " forwarded" at its end if the setting must name that header: else a caller could send X-Forwarded-For.
    """

    address: str
    caller: str
    field: str
    proxy: str


def forwarding(request: HttpRequest) -> Forwarding | None:
    """Return it if the address behind the trusted proxies names a caller before it, as proxies do."""
    peer, text, in_pairs = reported(request)
    found, field = _caller(request), settings.TRUSTED_PROXIES.field or ("forwarded" if in_pairs else "x-forwarded-for")
    hops = [*map(_node if in_pairs else str.strip, text.split(",")), peer]
    place = len(hops) - 1 if found is None else max((at for at, hop in enumerate(hops) if hop == found), default=0)
    caller = _parse(hops[place - 1]) if place else None
    if caller is None:
        return None
    address = None if found is None else _parse(found)
    proxy = "unix" if address is None else str(address) if address.is_private else ""
    return Forwarding(found or "", str(caller), field.title(), f"{proxy} {field}" if field == "forwarded" else proxy)


def trusting(proxy: str) -> str:
    """Return the setting TRUSTED_PROXIES that trusts this proxy as well, as JSON. proxy: see `Forwarding`.

    A public address is not named, and not counted as one more hop: a caller might have sent the request for that.
    """
    trusted = settings.TRUSTED_PROXIES
    proxy, _, standard = proxy.partition(" ")
    field = [trusted.field or standard] if trusted.field or standard else []
    if trusted.hops and proxy:
        return json.dumps([trusted.hops + 1, *field] if field else trusted.hops + 1)
    named = [*map(str, trusted.networks), *["unix"] * trusted.unix, proxy or "THE NETWORKS OF YOUR PROXY"]
    return json.dumps([*named, *field])


def reported(request: HttpRequest) -> tuple[str, str, bool]:
    """Return the connected peer, the header that names the hops before it, and whether this consists of pairs."""
    meta, trusted = request.META, settings.TRUSTED_PROXIES
    peer = meta.get("REMOTE_ADDR") or ""
    if trusted.own:
        return peer, meta.get(trusted.own, ""), False
    if trusted.field != "forwarded" and "HTTP_X_FORWARDED_FOR" in meta:  # even if it is empty
        return peer, meta["HTTP_X_FORWARDED_FOR"], False
    if trusted.field != "x-forwarded-for" and "HTTP_FORWARDED" in meta:
        return peer, meta["HTTP_FORWARDED"], True
    return peer, "", False


@lru_cache(maxsize=4096)
def _network_of(
    peer: str, forwarded: str, in_pairs: bool, trusted: TrustedProxies, ipv4_prefix: int, ipv6_prefix: int
) -> str | None:
    """Return the caller's address, or its network as "ADDRESS/PREFIX" if the prefix is shorter than the address."""
    text = _walk(peer, forwarded, trusted, in_pairs)
    if text is None or (ipv4_prefix == 32 and _is_plain(text)):
        return text
    address = _counted(text)
    if address is None:
        return None
    prefix = ipv4_prefix if address.version == 4 else ipv6_prefix
    free_bits = address.max_prefixlen - prefix
    if free_bits == 0:
        return str(address)
    return f"{type(address)(int(address) >> free_bits << free_bits)}/{prefix}"


def _caller(request: HttpRequest) -> str | None:
    """Return the hop that is the caller, as text; `None` if no hop has an address."""
    peer, forwarded, in_pairs = reported(request)
    return _walk(peer, forwarded, settings.TRUSTED_PROXIES, in_pairs)


def _walk(peer: str, forwarded: str, trusted: TrustedProxies, in_pairs: bool) -> str | None:
    if not forwarded:
        return peer
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
        part = forwarded[comma + 1 : end]
        hop = _node(part) if in_pairs else part.strip(" \t")[: _MAX_ADDRESS + 1]
        end, passed = comma, passed + 1


def _node(element: str) -> str:
    """Return the `for` of an element of Forwarded; empty if there is none, or several, or the element is malformed.

    A comma in a quoted text splits the element, and neither part can be parsed. The caller may have written that text.
    """
    if len(element) > _MAX_ELEMENT:
        return ""
    found: list[str] = []
    position = 0
    while position < len(element):
        pair = _PAIR.match(element, position)
        if pair is None:
            return ""
        if pair[1].lower() == "for":
            found.append(re.sub(r"\\(.)", r"\1", pair[2]) if pair[3] is None else pair[3])
        position = pair.end()
    return found[0][: _MAX_ADDRESS + 1] if len(found) == 1 else ""


@lru_cache(maxsize=4096)
def _parse(text: str) -> Address | None:
    """Return the address in `text`, which may have a port, brackets or a zone; `None` if it is invalid.

    An IPv4-mapped IPv6 address becomes the IPv4 address. A zone is dropped: it is the server's own interface.
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
def _counted(text: str) -> Address | None:
    """Return the address in `text`, or the IPv4 address that it embeds; `None` if it is invalid.

    All callers behind a NAT64, or of a Teredo server, have one IPv6 network. Trusted proxies and access entries are
    compared with the address itself.
    """
    address = _parse(text)
    if not isinstance(address, IPv6Address):
        return address
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    is_last = int(last) >> 24 and any(address in network for network in _ENDING_IN_IPV4)  # not of "::1"
    return address.teredo[1] if address.teredo else last if is_last else address


def _is_plain(text: str) -> bool:
    """Return whether this is an IPv4 address and nothing else, the usual case. Parsing takes ten times as long."""
    try:
        return inet_ntoa(inet_aton(text)) == text
    except (OSError, ValueError):
        return False
