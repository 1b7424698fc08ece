"""Who asks: the user, the client's address behind trusted proxies, the API key; worked out when a rule asks.

The client's address is found by walking from the peer that is connected to us towards the client: first
REMOTE_ADDR, then X-Forwarded-For from its right end. As long as a hop is trusted (TRUSTED_PROXIES), the hop that
it reports is looked at; the first one that is not trusted is the client. A hop that is no address (garbage,
`unknown`, an empty part) ends the walk: what counts is the nearest address known for certain, which is the
trusted hop that reported it. So does the end of the list. Whatever stands left of the client is never read, so
that nobody can choose an address by sending the header.
"""

from __future__ import annotations

import logging
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b, sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error
from django.http import HttpRequest
from django.utils.asyncio import async_unsafe
from django.utils.functional import LazyObject, empty

from .conf import TrustedProxies, settings
from .rules.tiers import api_key_known

logger = logging.getLogger("django_ratelimiter")

#: Longer keys are nobody's, and are not worth hashing.
MAX_API_KEY: Final = 256
#: The longest way to write an address with zone and port; longer parts are not looked at.
_MAX_ADDRESS: Final = 80
#: What servers call the peer on a Unix socket.
_UNIX_PEERS: Final = ("", "unix:")

Address = IPv4Address | IPv6Address

_V4_WITH_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}", re.ASCII)
_BRACKETED = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[^\]]+)?)\](?::[0-9]{1,5})?", re.ASCII)
_UNREAD: Final[Any] = object()


class UserUnread(SynchronousOnlyOperation):
    """On an event loop a user was asked for whom nobody has read yet; that may take a while."""


class Identity:
    """Who sent a request. Each part is worked out when it is first asked for; `None` = the request has none."""

    __slots__ = ("_api_key", "_ip", "_request", "_user_id")

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self._user_id = self._ip = self._api_key = _UNREAD

    @property
    def user_id(self) -> str | None:
        """The primary key, as text, of the authenticated user that an authentication has put on the request."""
        if self._user_id is _UNREAD:
            try:
                self._user_id = _id_of(_user_of(self._request))
            except SynchronousOnlyOperation as error:
                raise UserUnread(*error.args) from None
            except Error:
                self._count_as_anonymous()
        return self._user_id  # type: ignore[no-any-return]

    async def read_user(self) -> None:
        """Have the user read without blocking the event loop, after UserUnread."""
        try:
            if hasattr(self._request, "auser"):
                self._user_id = _id_of(await self._request.auser())
            else:
                await sync_to_async(lambda: self.user_id)()
        except Error:
            self._count_as_anonymous()

    def _count_as_anonymous(self) -> None:
        # Whether the request can do without its session, its view will tell.
        logger.exception("The user of a request cannot be read; it counts as anonymous.")
        self._user_id = None

    @property
    def ip(self) -> str | None:
        """The client's address, or the network of IPV4_PREFIX or IPV6_PREFIX bits that it belongs to."""
        if self._ip is _UNREAD:
            self._ip = client_ip(self._request)
        return self._ip  # type: ignore[no-any-return]

    @property
    def api_key(self) -> str | None:
        """The hash of the API key, if an assignment knows it: an invented key is no identity."""
        if self._api_key is _UNREAD:
            self._api_key = _known_api_key(self._request)
        return self._api_key  # type: ignore[no-any-return]

    @property
    def awaits_authentication(self) -> bool:
        """Whether the request shows credentials that nobody has checked yet, and nothing else tells who asks."""
        return "HTTP_AUTHORIZATION" in self._request.META and self.user_id is None and self.api_key is None


def identify(request: HttpRequest) -> Identity:
    """Who sent `request`, a Django or DRF one. Works nothing out yet."""
    return Identity(request)


def partition(identity: Identity, names: Iterable[str]) -> str | None:
    """The value that splits a rule's counters, such as "user:42|ip:203.0.113.7"; "" for no names.

    names: of "user", "ip", "api_key". `None` if the identity lacks one of them.
    """
    parts = []
    for name in names:
        value: str | None = getattr(identity, _ATTRIBUTES[name])
        if value is None:
            return None
        if "|" in value or "%" in value:  # so that two identities never share a value
            value = value.replace("%", "%25").replace("|", "%7C")
        parts.append(f"{name}:{value}")
    return "|".join(parts)


_ATTRIBUTES: Final = {"user": "user_id", "ip": "ip", "api_key": "api_key"}


def digest(value: str) -> str:
    """What stands for a partition in the names of keys: 22 characters, keyed with HASH_KEY."""
    hasher = _keyed_hasher(settings.HASH_KEY).copy()
    hasher.update(value.encode("utf-8", "surrogatepass"))
    return urlsafe_b64encode(hasher.digest())[:22].decode()


def hash_api_key(raw: str) -> str:
    """What is stored of an API key: the SHA-256 of its UTF-8 bytes, in 64 hexadecimal digits."""
    return sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()


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


def _user_of(request: HttpRequest) -> Any:
    user = getattr(request, "user", None)
    if isinstance(user, LazyObject) and user._wrapped is empty:
        async_unsafe("The user of a request is read from its session.")(user._setup)()
    return user


def _id_of(user: Any) -> str | None:
    return str(user.pk) if user is not None and user.is_authenticated and user.pk is not None else None


def _known_api_key(request: HttpRequest) -> str | None:
    raw = request.META.get(_header_name(settings.API_KEY_HEADER), "").strip()
    if not raw or len(raw) > MAX_API_KEY or not raw.isascii():
        return None
    hashed = hash_api_key(raw)
    return hashed if api_key_known(hashed) else None


@lru_cache(maxsize=16)
def _header_name(header: str) -> str:
    return "HTTP_" + header.upper().replace("-", "_")


@lru_cache(maxsize=4)
def _keyed_hasher(key: bytes) -> blake2b:
    return blake2b(key=key, digest_size=16)
