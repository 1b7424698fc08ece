"""Versions in URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from django.http import Http404

from ...engine.base import Version
from ...rules.stored.storage import snapshots

_KEY: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_MOST: Final = 2**63 - 1


def keys_of(versions: Sequence[Any]) -> list[str]:
    """Return each version's key in URLs: its number; with its epoch if a later version has the same number."""
    numbers = {version.number for version in versions}
    latest = dict(snapshots().filter(number__in=numbers).order_by("epoch").values_list("number", "epoch"))
    return [
        f"{version.number}" if latest.get(version.number) == version.epoch else exact_key_of(version)
        for version in versions
    ]


def exact_key_of(version: Any) -> str:
    """Return a version's key that is always unique."""
    return f"{version.number}-{version.epoch}"


def version_named(key: str) -> Version:
    """Return the version of a key with an epoch. Raises Http404 if there is none."""
    found = _KEY.fullmatch(key)
    if not found or not found[2] or max(map(int, found.groups())) > _MOST:
        raise Http404
    return Version(int(found[1]), int(found[2]))


def row_named(key: str) -> Any:
    """Return the stored version with this key, the latest of its number. Raises Http404 if there is none."""
    found = _KEY.fullmatch(key)
    if not found or max(int(part or 0) for part in found.groups()) > _MOST:
        raise Http404
    rows = snapshots().filter(number=int(found[1])).prefetch_related("author")
    row = (rows.filter(epoch=int(found[2])) if found[2] else rows).first()
    if row is None:
        raise Http404
    return row
