"""Names instead of digests: the callers of aliases, for readers with the permission."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ..conf import read_alias
from ..values.partitions import partition_names

#: The permission to see a name.
PERMISSION: Final = "django_ratelimiter.reveal_caller"


class Name(NamedTuple):
    """The caller of an alias. kind: `user`, `ip`, …; `partition` if several values identify callers."""

    kind: str
    value: str

    @property
    def shown(self) -> str:
        """The value as text: of the hash of an API key only the start."""
        is_hash = self.kind == "api_key" and re.fullmatch(r"[0-9a-f]{64}", self.value)
        return f"{self.value[:8]}…" if is_hash else self.value


def revealed_to(reader: Any, aliases: Iterable[str]) -> dict[str, Name]:
    """Return the names of these aliases that can be read and that REVEAL and the permission let this user see.

    `None` = may see all.
    """
    if reader is not None and not reader.has_perm(PERMISSION):
        return {}
    found = {alias: read_alias(alias) for alias in aliases}
    return {alias: _name(text) for alias, text in found.items() if text is not None}


def _name(partition: str) -> Name:
    names = partition_names(partition)
    if len(names) > 1:
        return Name("partition", partition)
    value = partition.removeprefix(f"{names[0]}:")
    return Name(names[0], value.replace("%7C", "|").replace("%25", "%"))
