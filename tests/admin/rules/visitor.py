"""Somebody who sends requests to a site whose rules are edited in the admin, at moments that the test chooses."""

from __future__ import annotations

from typing import Any

from django.test import Client

from django_ratelimiter.engine.redis import RedisEngine

from .stories import Answer

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
