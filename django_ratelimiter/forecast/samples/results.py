"""The parts of a forecast from samples."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from .estimates import Range


class Effect(NamedTuple):
    """What a rule rejects in a tier: how many of its callers at least once, and how many requests."""

    callers: Range
    requests: Range


class TierForecast(NamedTuple):
    """One tier. "" = no tier. requests: recorded, all of them. sampled: callers in the sample.

    before, after: by the old rule, and by the new one. newly: callers that only the new one rejects; no_longer:
    that only the old one rejects.
    """

    tier: str
    requests: int
    sampled: int
    before: Effect
    after: Effect
    newly: Range
    no_longer: Range


class HourForecast(NamedTuple):
    """Requests in one hour, and how many of them the old and the new rule reject."""

    start: datetime
    end: datetime
    requests: int
    before: Range
    after: Range


class CallerForecast(NamedTuple):
    """A sampled caller. peak: its most requests in one cell. before, after: its rejected requests.

    first_at: when the new rule rejects it first; `None` = never.
    """

    tier: str
    who: str
    requests: int
    peak: int
    before: int
    after: int
    first_at: datetime | None
