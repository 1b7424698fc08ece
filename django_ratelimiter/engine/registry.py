"""The registry of algorithms. Adding one takes its line here and its two files in `algorithms/`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Algorithm(StrEnum):
    """The algorithms, each with its letter in key names and the options it takes beside quota, window and soft_quota.

    This is the registry: the engines load `algorithms/VALUE.py` and `algorithms/VALUE.lua` by these values.
    `max_delay` is an option of the charge; the others are the limit's.
    """

    letter: str
    options: frozenset[str]
    number: int

    def __new__(cls, value: str, letter: str = "", *options: str) -> Algorithm:
        member = str.__new__(cls, value)
        member._value_ = value
        member.letter = letter
        member.options = frozenset(options)
        member.number = len(cls.__members__)
        return member

    FIXED_WINDOW = "fixed_window", "f", "anchor", "calendar", "timezone", "anchor_day"
    SLIDING_WINDOW_LOG = "sliding_window_log", "l"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter", "c"
    SLIDING_WINDOW_SLOTS = "sliding_window_slots", "s", "slots"
    TOKEN_BUCKET = "token_bucket", "b", "burst", "refill"
    GCRA = "gcra", "g", "burst"
    LEAKY_BUCKET = "leaky_bucket", "q", "burst", "max_delay"
    CONCURRENCY = "concurrency", "n"


#: What the options that are one of a few words can be; the first is the default.
ANCHORS: Final = ("clock", "first_request")
REFILLS: Final = ("continuous", "interval")

#: How the terms of a fixed window say where it begins.
ON_CLOCK, ON_FIRST_REQUEST, ON_CALENDAR = range(3)
