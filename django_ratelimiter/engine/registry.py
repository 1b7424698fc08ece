"""The registry of algorithms. To add one, add its entry here and its two files in `algorithms/`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


def gettext_noop(text: str) -> str:
    """Mark a text for translation. The admin translates it; the engine imports no Django."""
    return text


_ = gettext_noop


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The properties of an algorithm. Other code checks these instead of comparing names.

    options: options besides quota, window and soft_quota. `max_delay` is an option of the charge; the others are the
    limit's. An algorithm with `burst` is a bucket; one with `max_delay` delays allowed requests until their turn.
    label: its name in the admin's list of algorithms; empty = its name. short: its name in texts such as "5 per minute,
    GCRA"; empty = its name.
    holds_leases: an allowed request counts until it is released; the window is the maximum time for that.
    keeps_entries: each request is stored, so quotas are limited by MAX_ENTRIES.
    fetches: a process may charge units in advance, or decide alone.
    resets_at_end: the full quota is back at the end of a window, whatever else is used in it.
    keeps_expiry: a charge seldom changes the time at which the full quota is back, so Redis mostly keeps the expiry
    of the key, which costs less than setting it.
    multiplies: a step multiplies units by a time, so the terms of a limit must keep that product exact.
    unit: the name of the quota's unit for clients; `None` = requests.
    """

    options: tuple[str, ...] = ()
    label: str = ""
    short: str = ""
    holds_leases: bool = False
    keeps_entries: bool = False
    fetches: bool = True
    resets_at_end: bool = False
    keeps_expiry: bool = False
    multiplies: bool = False
    unit: str | None = None


class Algorithm(StrEnum):
    """The algorithms, each with its letter in key names and its traits.

    This is the registry: the engines load `algorithms/VALUE.py` and `algorithms/VALUE.lua` by these values.
    """

    letter: str
    traits: Traits
    options: frozenset[str]
    number: int

    def __new__(cls, value: str, letter: str = "", traits: Traits | None = None) -> Algorithm:
        member = str.__new__(cls, value)
        member._value_ = value
        member.letter = letter
        member.traits = traits or Traits()
        member.options = frozenset(member.traits.options)
        member.number = len(cls.__members__)
        return member

    FIXED_WINDOW = (
        "fixed_window",
        "f",
        Traits(
            options=("anchor", "calendar", "timezone", "anchor_day", "anchor_time"),
            label=_("fixed window: starts again at every window"),
            short=_("fixed window"),
            resets_at_end=True,
            keeps_expiry=True,
        ),
    )
    SLIDING_WINDOW_LOG = (
        "sliding_window_log",
        "l",
        Traits(
            label=_("sliding window, exact: remembers each request"),
            short=_("sliding window, exact"),
            keeps_entries=True,
        ),
    )
    SLIDING_WINDOW_COUNTER = (
        "sliding_window_counter",
        "c",
        Traits(
            label=_("sliding window: estimates, in little memory"),
            short=_("sliding window"),
            keeps_expiry=True,
            multiplies=True,
        ),
    )
    SLIDING_WINDOW_SLOTS = (
        "sliding_window_slots",
        "s",
        Traits(
            options=("slots",),
            label=_("sliding window in slots: moves on step by step"),
            short=_("sliding window"),
            keeps_expiry=True,
        ),
    )
    TOKEN_BUCKET = (
        "token_bucket",
        "b",
        Traits(
            options=("burst", "refill"),
            label=_("token bucket: fills up again, allows a burst"),
            short=_("token bucket"),
            multiplies=True,
        ),
    )
    GCRA = (
        "gcra",
        "g",
        Traits(
            options=("burst",),
            label=_("GCRA: a token bucket in less memory"),
            short=_("GCRA"),
            multiplies=True,
        ),
    )
    LEAKY_BUCKET = (
        "leaky_bucket",
        "q",
        Traits(
            options=("burst", "max_delay"),
            label=_("leaky bucket: holds requests, for an even pace"),
            short=_("leaky bucket"),
            fetches=False,
            multiplies=True,
        ),
    )
    CONCURRENCY = (
        "concurrency",
        "n",
        Traits(
            label=_("concurrency: requests in progress at once"),
            holds_leases=True,
            keeps_entries=True,
            fetches=False,
            unit="concurrent-requests",
        ),
    )


#: The default algorithm of a limit.
DEFAULT: Final = Algorithm.SLIDING_WINDOW_COUNTER
#: The algorithm that never allows more than the quota in any period of a window's length.
STRICTEST: Final = Algorithm.SLIDING_WINDOW_LOG
#: The algorithm with the fewest steps.
SIMPLEST: Final = Algorithm.FIXED_WINDOW

#: The possible values of options with a choice of words; the first is the default.
ANCHORS: Final = ("clock", "first_request")
REFILLS: Final = ("continuous", "interval")

#: How the terms of a fixed window encode where it begins.
ON_CLOCK, ON_FIRST_REQUEST, ON_CALENDAR = range(3)
