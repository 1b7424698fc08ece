"""Usage of a limit, for each algorithm straight from its definition.

Every counter has `last`, the time of its last spending, and tells its `level` at any time from then on: the units that
count against the limit. Times are in microseconds since the Unix epoch. How much of a cost is booked is decided by
who calls `spend`; an admitted cost is booked whole.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import cache
from math import ceil, gcd

from django_ratelimiter.engine import Limit

from .calendars import calendar_window

Units = int | Fraction
NOMINAL_DAYS = {"day": 1, "week": 7, "month": 31, "year": 366}


def period_of(limit: Limit) -> int:
    """The window in microseconds; of a calendar the longest that it has, but for changes of the clock."""
    return NOMINAL_DAYS[limit.calendar] * 86_400_000_000 if limit.calendar else _microseconds(limit.window)


@cache
def _microseconds(seconds: float | Decimal) -> int:
    return int(Fraction(str(seconds)) * 1_000_000)


def capacity_of(limit: Limit) -> int:
    """The largest cost that can ever pass."""
    return limit.quota if limit.burst is None else limit.burst


def slots_of(limit: Limit) -> int:
    """The slots of a window, of an algorithm that has them."""
    return limit.slots or 10


class Counter:
    """What is used of one limit."""

    last = 0

    def level(self, limit: Limit, at: int) -> Units:
        """The units that count at this time."""
        raise NotImplementedError

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        """Count these units from now on."""
        raise NotImplementedError

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        """Take back what was spent at that time, where it is still known."""
        raise NotImplementedError

    def reject(self, limit: Limit, cost: int, at: int) -> None:
        """Count a rejected cost, as far as it fits."""
        self.spend(limit, max(min(cost, capacity_of(limit) - self.level(limit, at)), 0), at)


class Windows(Counter):
    """The units spent in each window, by its start: fixed windows of the clock or a calendar."""

    def __init__(self) -> None:
        self.units: dict[int, Units] = {}

    def start(self, limit: Limit, at: int) -> int:
        """When the window began that holds this time."""
        if limit.calendar:
            return calendar_window(limit, at)[0]
        return at - at % period_of(limit)

    def level(self, limit: Limit, at: int) -> Units:
        return self.units.get(self.start(limit, at), 0)

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        start = self.start(limit, at)
        self.units[start] = self.units.get(start, 0) + units
        self.last = at

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        """Only the window of the last spending is still known."""
        start = self.start(limit, spent_at)
        if start == self.start(limit, self.last):
            self.units[start] = max(self.units.get(start, 0) - units, 0)


class SlidingCounter(Windows):
    """The window before counts for the share of it that the sliding window still covers."""

    def level(self, limit: Limit, at: int) -> Units:
        period, tick = period_of(limit), limit.terms.tick_us
        start = self.start(limit, at)
        covered = period - (at // tick * tick - start)
        return self.units.get(start, 0) + Fraction(self.units.get(start - period, 0) * covered, period)

    def reject(self, limit: Limit, cost: int, at: int) -> None:
        """Only the present window fills up at the capacity, whatever is left of the one before."""
        present = self.units.get(self.start(limit, at), 0)
        self.spend(limit, max(min(cost, capacity_of(limit) - present), 0), at)


class FirstRequestWindow(Counter):
    """One window, which began with a spending while there was none."""

    def __init__(self) -> None:
        self.began = 0
        self.used: Units = 0

    def level(self, limit: Limit, at: int) -> Units:
        return self.used if at < self.began + period_of(limit) else 0

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        used = self.level(limit, at)
        if not used:
            self.began = at
        self.used = used + units
        self.last = at

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        if self.began <= spent_at < self.began + period_of(limit):
            self.used = max(self.used - units, 0)


class Newest(Counter):
    """Units by the time or slot that they were spent in; of rejections that count, the newest units are kept."""

    def __init__(self) -> None:
        self.units: dict[int, Units] = {}

    def is_live(self, limit: Limit, key: int, at: int) -> bool:
        """Whether what was spent in this time or slot still counts."""
        raise NotImplementedError

    def level(self, limit: Limit, at: int) -> Units:
        return sum(units for key, units in self.units.items() if self.is_live(limit, key, at))

    def reject(self, limit: Limit, cost: int, at: int) -> None:
        before = self.level(limit, at)
        most = max(before, min(before + cost, capacity_of(limit)))
        self.spend(limit, min(cost, most), at)
        excess = self.level(limit, at) - most
        for key in sorted(key for key in self.units if self.is_live(limit, key, at)):
            gone = min(excess, self.units[key])
            self.units[key] -= gone
            excess -= gone


class Log(Newest):
    """The units spent at each time, for sliding_window_log; a lease of concurrency is the same, ended by a refund."""

    def is_live(self, limit: Limit, key: int, at: int) -> bool:
        return key > at - period_of(limit)

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        begin = at - period_of(limit)
        self.units = {time: held for time, held in self.units.items() if time > begin}
        self.units[at] = self.units.get(at, 0) + units
        self.last = at

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        self.units[spent_at] = max(self.units.get(spent_at, 0) - units, 0)

    def earliest_end(self, limit: Limit, at: int) -> int:
        """When the first of the leases ends that are held at this time."""
        period = period_of(limit)
        return min(time for time, units in self.units.items() if units and time > at - period) + period


class Slots(Newest):
    """The units spent in each slot, numbered from the epoch on."""

    @staticmethod
    def slot(limit: Limit, at: int) -> int:
        """The slot of this time: number i of a window begins at its first whole microsecond from i x P / slots on."""
        return at * slots_of(limit) // period_of(limit)

    def is_live(self, limit: Limit, key: int, at: int) -> bool:
        return key > self.slot(limit, at) - slots_of(limit)

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        slot = self.slot(limit, at)
        self.units[slot] = self.units.get(slot, 0) + units
        self.last = at

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        slot = self.slot(limit, spent_at)
        self.units[slot] = max(self.units.get(slot, 0) - units, 0)


class Bucket(Counter):
    """The tokens that were missing after the last spending: token_bucket, gcra, and leaky_bucket as what is queued."""

    def __init__(self) -> None:
        self.missing: Units = Fraction(0)
        self.parts = 0

    def level(self, limit: Limit, at: int) -> Units:
        """The tokens that are missing at this time. Those that come back come at ticks."""
        tick, period = limit.terms.tick_us, period_of(limit)
        missing = self.missing
        if self.parts != self.parts_of(limit):  # a changed quota rounds up to a whole part of a token
            missing = Fraction(ceil(missing * self.parts_of(limit)), self.parts_of(limit))
        if missing > capacity_of(limit):
            missing = Fraction(capacity_of(limit))
        back = Fraction((at // tick - self.last // tick) * tick * limit.quota, period)
        return missing - back if back < missing else Fraction(0)

    @staticmethod
    def parts_of(limit: Limit) -> int:
        """How many parts make a token, so that a whole number of them comes back per tick."""
        ticks = period_of(limit) // limit.terms.tick_us
        return ticks // gcd(ticks, limit.quota)

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        self.missing = self.level(limit, at) + units
        self.parts, self.last = self.parts_of(limit), at

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        self.missing = max(self.missing - units, Fraction(0))


class IntervalBucket(Counter):
    """The tokens that were missing after the last spending; the quota comes back at each whole window of the clock."""

    def __init__(self) -> None:
        self.missing: Units = 0

    def level(self, limit: Limit, at: int) -> Units:
        windows = at // period_of(limit) - self.last // period_of(limit)
        return max(min(self.missing, capacity_of(limit)) - windows * limit.quota, 0)

    def spend(self, limit: Limit, units: Units, at: int) -> None:
        self.missing = self.level(limit, at) + units
        self.last = at

    def refund(self, limit: Limit, units: int, spent_at: int) -> None:
        self.missing = max(self.missing - units, 0)


def counter_for(limit: Limit) -> Counter:
    """An unused counter for this limit."""
    if limit.anchor == "first_request":
        return FirstRequestWindow()
    if limit.refill == "interval":
        return IntervalBucket()
    return KINDS[limit.algorithm]()


KINDS: dict[str, type[Counter]] = {
    "fixed_window": Windows,
    "sliding_window_log": Log,
    "sliding_window_counter": SlidingCounter,
    "sliding_window_slots": Slots,
    "token_bucket": Bucket,
    "gcra": Bucket,
    "leaky_bucket": Bucket,
    "concurrency": Log,
}
