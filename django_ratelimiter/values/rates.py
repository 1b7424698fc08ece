"""Rates in DRF's format: a number of requests and a period, such as "10/min"."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_RATE: Final = re.compile(r"\s*(?P<count>-?[0-9_]+)\s*/\s*(?P<period>[a-z]+)\s*", re.ASCII)
#: The periods in DRF's documentation, and other common words that it reads correctly.
_PERIODS: Final = {
    1: ("s", "sec", "secs", "second", "seconds"),
    60: ("m", "min", "mins", "minute", "minutes"),
    3_600: ("h", "hr", "hrs", "hour", "hours"),
    86_400: ("d", "day", "days"),
}
_SECONDS: Final = {word: seconds for seconds, words in _PERIODS.items() for word in words}


@lru_cache(maxsize=1_000)
def rate_from(text: str) -> tuple[int, int] | None:
    """Return the requests and seconds of a rate; `None` if the text is not a rate."""
    match = _RATE.fullmatch(text)
    if match is None or match["period"] not in _SECONDS:
        return None
    return int(match["count"]), _SECONDS[match["period"]]
