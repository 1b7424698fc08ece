"""A visitor of a site whose rules are edited in the admin: requests are sent at moments that the test chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.test import Client

from django_ratelimiter.engine.redis import RedisEngine

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


#: The answer to this address lasts until somebody reads it or closes it.
PATH = "/streamed/"


class TimedEngine(RedisEngine):
    """The engine on Redis, at a moment that the test chooses."""

    now_us = 0

    def check(self, charges: Any, **given: Any) -> Any:
        return super().check(charges, **{**given, "now_us": self.now_us})

    def _call(self, mode: Any, charges: Any, receipts: Any, version: Any, now_us: Any, *given: Any) -> list[int]:
        return super()._call(mode, charges, receipts, version, self.now_us, *given)


class Visitor:
    """Sends requests and leaves the responses open. held: for how long the middleware slept, one by one."""

    def __init__(self, client: Client, engine: TimedEngine) -> None:
        self.client, self.engine = client, engine
        self.held: list[float] = []
        self.open: list[Any] = []
        self.latest: Any = None

    def ask(self, at_us: int) -> Answer:
        self.engine.now_us = at_us
        before = len(self.held)
        self.latest = response = self.client.get(PATH)
        results = response.wsgi_request.ratelimit.results
        soft = any(result.verdict.soft_exceeded for result in results)
        if response.status_code == 429:
            retry_after = int(response["Retry-After"])
            assert f";t={retry_after}" in response["RateLimit"]
            assert ";r=0" in response["RateLimit"]
            return Answer(False, retry_after, 0.0, soft)
        assert response.status_code == 200
        self.open.append(response)
        return Answer(True, None, sum(self.held[before:]), soft)

    def close(self, at_us: int, count: int) -> None:
        self.engine.now_us = at_us
        for _ in range(count):
            self.open.pop(0).close()
