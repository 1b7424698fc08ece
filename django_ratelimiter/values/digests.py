"""Digests, which replace callers in names of Redis keys, in SQL and in logs, and aliases, which can be read again.

Both come from AES-SIV (RFC 5297) with HASH_KEY: the tag is the digest, and the ciphertext is the tail. Digest and tail
together are the alias. The digest does not depend on whether the tail is kept.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from binascii import b2a_base64
from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from ..engine.base import Alias, tail_of
from .partitions import is_address, partition_names

#: Characters of a digest.
DIGEST_SIZE: Final = 22

#: The beginning of the tails of addresses, which are cut from rows earlier: see RETENTION.
ADDRESS_MARK: Final = "."

#: Maximum bytes of a value that has a tail, so that tails fit into their columns.
MAX_READABLE: Final = 150

#: Maximum length of values whose digest is cached. Values of a project's own code may be as long as a body.
MAX_CACHED: Final = 1_000

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


@lru_cache(maxsize=4096)
def keyed_digest(key: bytes, value: str, reveal: tuple[str, ...] = (), names: tuple[str, ...] | None = None) -> Alias:
    """Return the digest of a partition with this key: 22 characters.

    reveal: the identities that have a tail. names: those of the partition, if they are known.
    """
    text = value.encode("utf-8", "surrogatepass") or b"\0"
    sealed = _cipher(key).encrypt(text, None)
    # In one go: the two bytes between are written as two characters after the digest.
    words = b2a_base64(sealed[:16] + b"\0\0" + sealed[16:], newline=False).translate(_URL_SAFE, b"=").decode()
    alias = Alias(words[:DIGEST_SIZE])
    alias.tail = ""
    mark = _mark_of(names or partition_names(value), reveal) if reveal else None
    # A value that `encode_partition` has replaced by its hash would not be readable.
    if mark is not None and len(text) <= MAX_READABLE and ":%s" not in value:
        alias.tail = mark + words[DIGEST_SIZE + 2 :]
    return alias


def are_revealed(names: Iterable[str], reveal: Collection[str]) -> bool:
    """Return whether the values of all these identities may be shown, see the setting `REVEAL`.

    Whoever may see addresses may see the networks around them.
    """
    return all(name in reveal or (is_address(name) and "ip" in reveal) for name in names)


@lru_cache(maxsize=64)
def _mark_of(names: tuple[str, ...], reveal: tuple[str, ...]) -> str | None:
    """Return the beginning of the tails of partitions by these names; `None` = they have none."""
    if not are_revealed(names, reveal):
        return None
    return ADDRESS_MARK if any(map(is_address, names)) else ""


def alias_of(text: str) -> Alias:
    """Return the alias in a text that begins with a digest."""
    return Alias.of(text[:DIGEST_SIZE], text[DIGEST_SIZE:])


def whole(alias: str) -> str:
    """Return the text of an alias: the digest and its tail."""
    return alias + tail_of(alias)


def opened(keys: Iterable[bytes], alias: str) -> str | None:
    """Return the value of an alias that was made with one of these keys; `None` = of none, or it has no tail."""
    tail = tail_of(alias).removeprefix(ADDRESS_MARK)
    for key in keys if tail else ():
        try:
            sealed = b"".join(urlsafe_b64decode(each + "=" * (-len(each) % 4)) for each in (alias, tail))
            return _cipher(key).decrypt(sealed, None).decode("utf-8", "surrogatepass")
        except (InvalidTag, ValueError):  # of another key; cut, or never an alias
            continue
    return None


@lru_cache(maxsize=4)
def _cipher(key: bytes) -> AESSIV:
    return AESSIV(key)


def hash_api_key(raw: str) -> str:
    """Return the SHA-256 of an API key's UTF-8 bytes, in 64 hexadecimal digits. The key itself is never stored."""
    return sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()
