"""A visitor of a site whose rules are edited in the admin: requests are sent at moments that the test chooses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.test import Client

from django_ratelimiter.engine.redis import RedisEngine

#: A full minute, hour and day of the clock.
START_US = int(datetime(2026, 3, 4, tzinfo=UTC).timestamp()) * 1_000_000


class Answer(NamedTuple):
    """What came of one request. retry_after: whole seconds, of a rejected one."""

    allowed: bool
    retry_after: int | None


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
    """Sends requests and leaves the responses open."""

    def __init__(self, client: Client, engine: TimedEngine) -> None:
        self.client, self.engine = client, engine
        self.open: list[Any] = []
        self.latest: Any = None

    def ask(self, at_us: int) -> Answer:
        self.engine.now_us = at_us
        self.latest = response = self.client.get(PATH)
        if response.status_code == 429:
            retry_after = int(response["Retry-After"])
            assert f";t={retry_after}" in response["RateLimit"]
            assert ";r=0" in response["RateLimit"]
            return Answer(False, retry_after)
        assert response.status_code == 200
        self.open.append(response)
        return Answer(True, None)

    def close(self) -> None:
        for response in self.open:
            response.close()
