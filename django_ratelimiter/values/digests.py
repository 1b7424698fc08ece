"""Keyed digests, which replace the values of callers in names of Redis keys, in SQL and in logs."""

from __future__ import annotations

from binascii import b2a_base64
from functools import lru_cache
from hashlib import blake2b
from typing import Final

#: Maximum length of values whose digest is cached. Values of a project's own code may be as long as a body.
MAX_CACHED: Final = 1_000

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


@lru_cache(maxsize=4096)
def keyed_digest(key: bytes, value: str) -> str:
    """Return the digest of a value with this key: 22 characters."""
    hasher = _keyed_hasher(key).copy()
    hasher.update(value.encode("utf-8", "surrogatepass"))
    return b2a_base64(hasher.digest())[:22].translate(_URL_SAFE).decode()


@lru_cache(maxsize=4)
def _keyed_hasher(key: bytes) -> blake2b:
    return blake2b(key=key, digest_size=16)
