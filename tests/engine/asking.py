"""Keys, histories, and times in microseconds, for the tests of single engines."""

from __future__ import annotations

from itertools import count
from random import Random

from django_ratelimiter.engine import Charge, Engine
from tests.engine.strategies import cost_by, pause_by
from tests.engine.trio import HOUR
from tests.reference import period_of

_numbers = count()


def fresh() -> str:
    """A key that nobody else has used."""
    return f"key{next(_numbers)}"


def microseconds(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1_000_000)


def spent_from(engine: Engine, charge: Charge, random: Random) -> int:
    """Spend from a fresh counter at a few moments, ever later; the time of the last."""
    now = HOUR + random.randint(0, 2 * period_of(charge.limit))
    for _ in range(random.randint(0, 5)):
        engine.check([charge._replace(cost=cost_by(random, charge.limit))], now_us=now)
        now += abs(pause_by(random, now, charge.limit))
    return now


def used_up(engine: Engine, charge: Charge, random: Random) -> int:
    """Spend until the charge would be rejected; the time of that."""
    now = spent_from(engine, charge, random)
    left = engine.peek([charge], now)[0].remaining
    short = random.randint(0, min(left, charge.cost - 1))
    engine.check([charge._replace(cost=left - short)], now_us=now)
    return now
