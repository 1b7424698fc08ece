"""Versions in URLs."""

from __future__ import annotations

import re
from typing import Any, Final

from django.http import Http404

from ...engine.base import Version
from ...rules.stored.storage import snapshots

_KEY: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")


def key_of(version: Any) -> str:
    """Return a version's key in URLs: its number and epoch."""
    return f"{version.number}-{version.epoch}"


def version_named(key: str) -> Version:
    """Return the version of a key with an epoch. Raises Http404 if there is none."""
    found = _KEY.fullmatch(key)
    if not found or not found[2]:
        raise Http404
    return Version(int(found[1]), int(found[2]))


def row_named(key: str) -> Any:
    """Return the stored version with this key, or the latest with this number. Raises Http404 if there is none."""
    found = _KEY.fullmatch(key)
    if not found:
        raise Http404
    rows = snapshots().filter(number=int(found[1])).prefetch_related("author")
    row = (rows.filter(epoch=int(found[2])) if found[2] else rows).first()
    if row is None:
        raise Http404
    return row
