"""The buckets of a minute's counts: its own, its hour's and its day's.

One transaction adds to all three, so that they always agree, even if counts arrive late.
Hours and days stay when the minutes are pruned.
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from django.utils import timezone

from ..times import Granularity, floor, start_of, stored


def starts_of(minute: int) -> dict[str, datetime]:
    """Return the starts of the buckets of this minute, by granularity, as stored. minute: since the Unix epoch.

    Hours and days are in the project's time zone: a day has 23 to 25 hours if clocks change, and an hour that
    comes twice is two hours.
    """
    return _starts(minute, timezone.get_default_timezone_name())


@lru_cache(maxsize=256)
def _starts(minute: int, _zone: str) -> dict[str, datetime]:
    zone = timezone.get_default_timezone()
    return {str(each): stored(floor(start_of(minute), each, zone)) for each in Granularity}
