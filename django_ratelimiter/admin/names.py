"""Whom digests stand for, in words: for who may see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..usage import names as caller_names
from ..usage.names import Name
from .identities import label_of


def revealed_to(reader: Any, digests: Iterable[str]) -> Mapping[str, Name]:
    """Return whom these digests stand for, as far as it is known; nothing for readers who may not see it."""
    digests = set(digests)
    if not digests or not reader.has_perm(caller_names.PERMISSION):
        return {}
    return caller_names.revealed(digests)


def names_in_words(reader: Any, digests: Iterable[str]) -> Mapping[str, str]:
    """Return the same in words."""
    return {digest: name_in_words(name) for digest, name in revealed_to(reader, digests).items()}


def name_in_words(name: Name) -> str:
    """Return who it is: "User: 42"."""
    return name.value if name.kind == "partition" else f"{label_of(name.kind)}: {name.value}"
