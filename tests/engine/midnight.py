"""Processes, their clocks 30 s apart, that hit a calendar day's key while the server's clock passes midnight.

Run: python -m tests.engine.midnight URL. Prints, as JSON, what was admitted and rejected: [[before, after midnight]].
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from datetime import timedelta, timezone

import redis

from django_ratelimiter.engine import Charge, Limit, calendars
from django_ratelimiter.engine.redis import RedisEngine
from tests.engine.hits import QUOTA, set_clock

LIMIT = Limit(QUOTA, calendar="day", algorithm="fixed_window", timezone="Europe/Berlin")


def hit(url: str, midnight: int, ahead: float) -> list[tuple[bool, bool]]:
    """What one process does until it is rejected after midnight: for each hit, whether it was after, and admitted."""
    set_clock(ahead)
    with redis.Redis.from_url(url) as client:
        engine, answers, at = RedisEngine(client, "midnight"), [], 0
        allowed = True
        while allowed or at < midnight + 500_000:
            (verdict,) = engine.check([Charge("key", LIMIT)])
            at, allowed = verdict.at_us, verdict.allowed
            answers.append((at >= midnight, verdict.allowed))
        return answers


def main(url: str) -> None:
    """Move the midnight of Berlin to where it will be in a moment, and let them hit."""
    with redis.Redis.from_url(url) as client:
        midnight = client.time()[0] + 2
    zone = timezone(timedelta(seconds=-(midnight % 86_400)))
    calendars.zone_of = lambda name: zone  # type: ignore[assignment]
    jobs = [(url, midnight * 1_000_000, ahead) for ahead in (-30, 0, 30)]
    with multiprocessing.get_context("fork").Pool(len(jobs)) as pool:
        answers = [answer for process in pool.starmap(hit, jobs, chunksize=1) for answer in process]
        pool.close()
        pool.join()
    print(json.dumps([[answers.count((after, allowed)) for after in (False, True)] for allowed in (True, False)]))


if __name__ == "__main__":
    main(sys.argv[1])
