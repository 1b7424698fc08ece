"""A clock that stands still."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from math import ceil
from typing import Final

#: The default start time: a Thursday, and the first day of a month and a year.
START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class FrozenClock:
    """A clock that moves only when a test moves it, or when the limiter would sleep.

    at: the start time, aware of its time zone. slept: a list of the seconds that requests were delayed, the latest
    last.
    """

    def __init__(self, at: datetime = START) -> None:
        self.slept: list[float] = []
        self.move_to(at)

    def __call__(self) -> int:
        """Return the time in microseconds since the Unix epoch, for engines."""
        return self._now_us

    @property
    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self._now_us // 1_000_000, UTC).replace(microsecond=self._now_us % 1_000_000)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by this time or a little more, to a whole microsecond."""
        if seconds < 0:
            raise ValueError(f"seconds: must not be negative, so not {seconds!r}.")
        self._now_us += ceil(Decimal(str(seconds)) * 1_000_000)

    def move_to(self, at: datetime) -> None:
        """Set the clock to this time, which must be aware of its time zone."""
        if at.tzinfo is None:
            raise ValueError(f"at: {at!r} names no time zone.")
        since = at - datetime(1970, 1, 1, tzinfo=UTC)
        self._now_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    def sleep(self, seconds: float) -> None:
        """Advance the clock instead of sleeping, and record the seconds."""
        self.slept.append(seconds)
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        """Like `sleep`, for coroutines."""
        self.sleep(seconds)
