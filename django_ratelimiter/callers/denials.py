"""Whom access entries have denied lately: of one caller, from the same record as the page of recent rejections."""

from __future__ import annotations

from typing import Final

from ..exceptions import EngineUnavailable
from ..identity import digest
from ..usage.denied import DeniedCaller, denials_by
from ..values.access import KINDS
from .caller import Caller

#: So many are returned.
MAX_SHOWN: Final = 20


def denials_of(caller: Caller) -> list[DeniedCaller]:
    """Return the caller's, the latest first; one for each entry and view. None are known while Redis cannot be asked.

    One call to Redis, however many values of the caller are known.
    """
    if caller.kind == "digest":
        digests = [] if caller.is_everybody or caller.is_nobody else [caller.digest]
    else:
        partitions = (caller.partition((kind,)) for kind in KINDS)
        digests = [digest(each) for each in partitions if each is not None]
    if not digests:
        return []
    try:
        return denials_by(digests, MAX_SHOWN)
    except EngineUnavailable:
        return []
