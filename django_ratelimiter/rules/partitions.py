"""What rules may be split by, and partitions as text."""

from __future__ import annotations

from typing import Final

#: What rules may be split by.
IDENTITIES: Final = ("user", "ip", "api_key")


def is_identity(name: object) -> bool:
    """Whether a rule may be split by this."""
    return name in IDENTITIES


def names_of_partition(value: str) -> tuple[str, ...]:
    """What the parts of a partition are values of: ("user", "header:X-Org") for "user:7|header:X-Org:acme".

    A part that lacks a value has the name "".
    """
    return tuple(map(_name, value.split("|")))


def _name(part: str) -> str:
    name, _, value = part.partition(":")
    if name in ("header", "path", "field"):
        own, _, value = value.partition(":")
        name = f"{name}:{own}"
    return name if value else ""
