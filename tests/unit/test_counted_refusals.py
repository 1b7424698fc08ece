"""With count_refusals a caller who keeps asking stays out; without it a rejection changes nothing."""

from __future__ import annotations

import pytest

from django_ratelimiter.engine import Charge, Engine, Limit
from tests.engine.asking import fresh
from tests.engine.trio import HOUR

MINUTE, SECOND = 60_000_000, 1_000_000

LIMITS = {
    "sliding_window_log": Limit(5, 60, "sliding_window_log"),
    "sliding_window_counter": Limit(5, 60),
    "sliding_window_slots": Limit(5, 60, "sliding_window_slots"),
    "token_bucket": Limit(5, 60, "token_bucket"),
    "gcra": Limit(5, 60, "gcra"),
    "leaky_bucket": Limit(5, 60, "leaky_bucket"),
    "concurrency": Limit(5, 60, "concurrency"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_who_keeps_asking_stays_out_only_where_rejections_count(asked: Engine, name: str) -> None:
    counting, other = (
        Charge(fresh(), LIMITS[name], count_refusals=counts, max_delay=0 if name == "leaky_bucket" else None)
        for counts in (True, False)
    )
    admitted = {counting: 0, other: 0}
    for second in range(600):
        for charge in admitted:
            admitted[charge] += asked.check([charge], now_us=HOUR + second * SECOND)[0].allowed
    assert admitted[counting] <= 10 < 40 <= admitted[other] <= 60


def test_one_minute_of_silence_is_enough(asked: Engine) -> None:
    charge = Charge(fresh(), LIMITS["sliding_window_log"], count_refusals=True)
    for second in range(300):
        last = asked.check([charge], now_us=HOUR + second * SECOND)[0]
    assert last.retry_after == 56, "of the newest five units the oldest is four seconds old"
    now = HOUR + 299 * SECOND + MINUTE
    assert asked.check([charge._replace(cost=5)], now_us=now)[0].allowed
