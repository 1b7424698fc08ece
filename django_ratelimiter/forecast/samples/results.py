"""The parts of a forecast from samples."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from .estimates import Range


class Effect(NamedTuple):
    """What a rule rejects of a tier: how many of its callers at least once, and how many requests."""

    callers: Range
    requests: Range


class TierForecast(NamedTuple):
    """One tier. "" = no tier. requests: recorded, all of them. sampled: callers in the sample.

    before, after: by the rule as it is, and as it would be. newly: callers whom only the second rejects; no_longer:
    whom only the first does.
    """

    tier: str
    requests: int
    sampled: int
    before: Effect
    after: Effect
    newly: Range
    no_longer: Range


class HourForecast(NamedTuple):
    """Requests of one hour, and how many of them are rejected by the rule as it is, and as it would be."""

    start: datetime
    end: datetime
    requests: int
    before: Range
    after: Range


class CallerForecast(NamedTuple):
    """A sampled caller. peak: its most requests in one cell. before, after: its requests that are rejected.

    first_at: when the rule as it would be rejects it first; `None` = never.
    """

    tier: str
    who: str
    requests: int
    peak: int
    before: int
    after: int
    first_at: datetime | None
