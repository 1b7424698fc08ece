"""What each algorithm and option of the rule form means to a client, told moment by moment.

Every number here was reckoned by hand from the docs, for a quota of 5 a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

#: A full minute, hour and day of the clock.
NOON = "2026-03-04T00:00:00"

MINUTE = {"quota": 5, "window_seconds": "60"}


class Step(NamedTuple):
    """At a moment requests are sent until one is rejected: so many are admitted, and the rejected one may come back.

    at: seconds after NOON, or a moment in UTC. retry_after: whole seconds; `None` = none was rejected.
    only: send no more than this many. held: for how many seconds each that had to wait. soft: how many of those
    admitted are beyond the soft quota. closing: end so many responses, the oldest first, before anything is sent.
    """

    at: float | str
    admitted: int
    retry_after: int | None
    only: int = 1_000
    held: tuple[float, ...] = ()
    soft: int = 0
    closing: int = 0

    @property
    def at_us(self) -> int:
        """The moment in microseconds since the Unix epoch."""
        text, seconds = (self.at, 0.0) if isinstance(self.at, str) else (NOON, self.at)
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000 + round(seconds * 1e6)


class Story(NamedTuple):
    """What is typed into the form of a limit, and what then happens."""

    columns: Mapping[str, Any]
    steps: list[Step]

    def __str__(self) -> str:
        return "-".join(str(value) for name, value in self.columns.items() if name not in MINUTE)


class Answer(NamedTuple):
    """What came of one request. retry_after: whole seconds, of a rejected one."""

    allowed: bool
    retry_after: int | None
    held: float
    soft: bool


def play(story: Story, ask: Callable[[int], Answer], close: Callable[[int, int], None]) -> list[Step]:
    """What truly happens. ask: sends a request at a moment. close: ends so many responses then."""
    seen = []
    for step in story.steps:
        if step.closing:
            close(step.at_us, step.closing)
        answers: list[Answer] = []
        while len(answers) < step.only and all(answer.allowed for answer in answers):
            answers.append(ask(step.at_us))
        passed = [answer for answer in answers if answer.allowed]
        rejected = [answer.retry_after for answer in answers if not answer.allowed]
        held = tuple(answer.held for answer in passed if answer.held)
        soft = sum(answer.soft for answer in passed)
        retry_after = rejected[0] if rejected else None
        seen.append(step._replace(admitted=len(passed), retry_after=retry_after, held=held, soft=soft))
    return seen


def _limit(algorithm: str, **columns: Any) -> dict[str, Any]:
    window = {"quota": 5} if "calendar" in columns else MINUTE
    return {**window, "algorithm": algorithm, **columns}


DAY = 86_400

STORIES = [
    Story(_limit("fixed_window", anchor="clock"), [Step(50, 5, 10), Step(59.999, 0, 1), Step(60, 5, 60)]),
    Story(
        _limit("fixed_window", anchor="first_request"),
        [Step(50, 1, None, only=1), Step(55, 4, 55), Step(60, 0, 50), Step(109.999, 0, 1), Step(110, 5, 60)],
    ),
    Story(
        _limit("fixed_window", calendar="day"),
        [Step("2026-03-01T23:59:50", 5, 10), Step("2026-03-02T00:00:00", 5, DAY)],
    ),
    Story(
        _limit("fixed_window", calendar="day", timezone="Europe/Berlin"),  # the clocks are put forward: 23 hours
        [Step("2026-03-28T22:59:50", 5, 10), Step("2026-03-28T23:00:00", 5, DAY - 3_600)],
    ),
    Story(
        _limit("fixed_window", calendar="week"),
        [Step("2026-03-01T23:59:00", 5, 60), Step("2026-03-02T00:00:00", 5, 7 * DAY)],
    ),
    Story(
        _limit("fixed_window", calendar="month"),
        [Step("2026-01-31T23:59:59", 5, 1), Step("2026-02-01T00:00:00", 5, 28 * DAY)],
    ),
    Story(
        _limit("fixed_window", calendar="month", anchor_day=31, timezone="Asia/Tokyo"),
        [
            Step("2026-02-27T14:59:50", 5, 10),
            Step("2026-02-27T15:00:00", 5, 31 * DAY),
            Step("2026-03-30T15:00:00", 5, 30 * DAY),
        ],
    ),
    Story(
        _limit("fixed_window", calendar="year"),
        [Step("2026-12-31T23:59:59", 5, 1), Step("2027-01-01T00:00:00", 5, 365 * DAY)],
    ),
    Story(
        _limit("sliding_window_log"),
        [Step(0, 1, None, only=1), Step(50, 4, 10), Step(55, 0, 5, closing=3), Step(60, 1, 50), Step(110, 4, 10)],
    ),
    Story(_limit("sliding_window_counter"), [Step(0, 5, 72), Step(71.999, 0, 1), Step(72, 1, 12)]),
    Story(_limit("sliding_window_slots"), [Step(15, 5, 57), Step(71.999, 0, 1), Step(72, 5, 60)]),
    Story(_limit("sliding_window_slots", slots=6), [Step(15, 5, 55), Step(69.999, 0, 1), Step(70, 5, 60)]),
    Story(_limit("token_bucket", refill="continuous"), [Step(50, 5, 12), Step(62, 1, 12), Step(86, 2, 12)]),
    Story(_limit("token_bucket", burst=8), [Step(50, 8, 12), Step(62, 1, 12), Step(86, 2, 12)]),
    Story(_limit("token_bucket", refill="interval", burst=8), [Step(50, 8, 10), Step(60, 5, 60), Step(181, 8, 59)]),
    Story(_limit("gcra"), [Step(50, 5, 12), Step(62, 1, 12), Step(86, 2, 12)]),
    Story(_limit("gcra", burst=8), [Step(50, 8, 12), Step(62, 1, 12), Step(86, 2, 12)]),
    Story(_limit("leaky_bucket"), [Step(50, 1, 12), Step(62, 1, 12), Step(99, 1, 12)]),
    Story(_limit("leaky_bucket", max_delay_ms=15_000), [Step(50, 2, 9, held=(12,)), Step(59, 1, 12, held=(15,))]),
    Story(
        _limit("leaky_bucket", max_delay_ms=50_000),
        [Step(50, 5, 12, held=(12, 24, 36, 48)), Step(62, 1, 12, held=(48,))],
    ),
    Story(
        _limit("leaky_bucket", max_delay_ms=50_000, burst=3),
        [Step(50, 3, 12, held=(12, 24)), Step(62, 1, 12, held=(24,))],
    ),
    Story(
        _limit("concurrency"),
        [Step(0, 5, 60), Step(10, 1, 50, closing=1), Step(59.999, 0, 1), Step(60, 4, 10), Step(60, 1, 60, closing=5)],
    ),
]

#: The same with a soft quota of 3.
STORIES += [
    Story(_limit("fixed_window", soft_quota=3), [Step(50, 5, 10, soft=2), Step(60, 5, 60, soft=2)]),
    Story(
        _limit("sliding_window_log", soft_quota=3),
        [Step(0, 1, None, only=1), Step(50, 4, 10, soft=2), Step(55, 0, 5, closing=3), Step(60, 1, 50, soft=1)],
    ),
    Story(_limit("sliding_window_counter", soft_quota=3), [Step(0, 5, 72, soft=2), Step(72, 1, 12, soft=1)]),
    Story(_limit("sliding_window_slots", soft_quota=3), [Step(15, 5, 57, soft=2), Step(72, 5, 60, soft=2)]),
    Story(_limit("token_bucket", soft_quota=3), [Step(50, 5, 12, soft=2), Step(62, 1, 12, soft=1)]),
    Story(_limit("gcra", soft_quota=3), [Step(50, 5, 12, soft=2), Step(62, 1, 12, soft=1)]),
    Story(
        _limit("leaky_bucket", soft_quota=3, max_delay_ms=60_000),
        [Step(50, 5, 12, held=(12, 24, 36, 48), soft=2), Step(62, 1, 12, held=(48,), soft=1)],
    ),
    Story(_limit("concurrency", soft_quota=3), [Step(0, 5, 60, soft=2), Step(10, 1, 50, closing=1, soft=1)]),
]
