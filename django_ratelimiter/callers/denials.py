"""Whom access entries have denied lately: of one caller, from the same record as the page of recent rejections."""

from __future__ import annotations

from typing import Final

from ..exceptions import EngineUnavailable
from ..identity import digest
from ..usage.denied import DeniedCaller, denials_by
from ..values.access import KINDS
from .caller import Caller
from .counters import Counters

#: So many are returned.
MAX_SHOWN: Final = 20


def denials_of(caller: Caller, found: Counters) -> list[DeniedCaller]:
    """Return the caller's, the latest first; one for each entry and view. None are known while Redis cannot be asked.

    found: the caller's counters. If the denials were not read with them, this is one call to Redis.
    """
    if found.problem:
        return []
    if caller.kind == "digest":
        digests = [] if caller.is_everybody or caller.is_nobody else [caller.digest]
    else:
        partitions = (caller.partition((kind,)) for kind in KINDS)
        digests = [digest(each) for each in partitions if each is not None]
    if not digests:
        return []
    try:
        return denials_by(digests, MAX_SHOWN, found.peeked and found.peeked.denials)
    except EngineUnavailable:
        return []
