"""Calendar windows: days that are shorter, longer, missing or begin late, and months that have no 31st."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Limit
from django_ratelimiter.engine.calendars import CALENDARS, Anchor, window_at, zone_of
from tests.engine.strategies import ZONES
from tests.engine.trio import Trio
from tests.reference import calendar_window

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
NAMED = sorted(name for name in available_timezones() if "/" in name and not name.startswith(("posix/", "right/")))


def calendar(
    calendar: str = "day", timezone: str | None = None, anchor_day: int | None = None, anchor_time: time | None = None
) -> Limit:
    given = {"calendar": calendar, "timezone": timezone, "anchor_day": anchor_day, "anchor_time": anchor_time}
    return Limit(5, algorithm="fixed_window", **given)  # type: ignore[arg-type]


def moment(text: str, zone: str | None = None) -> int:
    """What the clocks of a zone show, where they show it for the first time, in microseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone or "UTC")).timestamp()) * 1_000_000


#: Zone, a moment within the day, the hours that this day has.
DAYS = [
    ("Europe/Berlin", "2026-03-29T12:00", 23),
    ("Europe/Berlin", "2026-10-25T12:00", 25),
    ("America/New_York", "2026-03-08T12:00", 23),
    ("America/New_York", "2026-11-01T12:00", 25),
    ("Australia/Lord_Howe", "2026-10-04T12:00", 23.5),
    ("Australia/Lord_Howe", "2026-04-05T12:00", 24.5),
    ("America/Sao_Paulo", "2017-10-15T12:00", 23),  # begins at 01:00
    ("America/Sao_Paulo", "2018-02-17T23:30", 25),  # shows 23:00 to 24:00 twice
    ("Asia/Beirut", "2024-03-31T12:00", 23),
    ("America/Havana", "2024-11-03T00:30", 25),  # shows 00:00 to 01:00 twice
    ("Pacific/Apia", "2011-12-29T12:00", 24),  # followed by the 31st
    ("Pacific/Apia", "2011-12-31T12:00", 24),
    ("America/St_Johns", "2010-11-07T12:00", 25),  # shows its first minute, 23:01 to 24:00 of the 6th, and goes on
    ("America/St_Johns", "2010-11-06T12:00", 24),
    ("Antarctica/Casey", "2010-03-05T12:00", 27),  # shows its first two hours, three hours of the 4th, and goes on
    (None, "2026-03-29T12:00", 24),
]


@pytest.mark.parametrize(("zone", "within", "hours"), DAYS)
def test_a_day_lasts_as_long_as_the_clocks_say(
    trio: Callable[[], Trio], zone: str | None, within: str, hours: float
) -> None:
    limit = calendar("day", zone)
    start, end = window_at(moment(within, zone), "day", zone, None)
    assert (start, end) == calendar_window(limit, moment(within, zone))
    assert (end - start) / HOUR_US == hours
    asked = trio()
    for at, cost, full_until in [
        (start - 1, 5, None),
        (start - 1, 1, start),
        (start, 5, None),
        (start, 1, end),
        (start - 1, 1, end),  # a clock that runs back over midnight stands still in the new day
        (end - 1, 1, end),
        (end, 5, None),
    ]:
        asked.now = at
        verdict = asked.one(limit, cost)
        assert verdict.allowed == (full_until is None)
        assert verdict.retry_after == ((full_until or at) - at) / 1_000_000


def seconds(at: time) -> time:
    """A time of day in whole seconds."""
    return at.replace(microsecond=0)


@given(
    zone=st.sampled_from(ZONES) | st.sampled_from(NAMED),
    unit=st.sampled_from(sorted(CALENDARS)),
    day=st.sampled_from([None, 28, 29, 30, 31]) | st.integers(1, 31),
    begins_at=st.sampled_from([None, time(0, 30), time(2, 30), time(23, 59, 59)]) | st.times().map(seconds),
    at=st.integers(0, 2_400_000_000_000_000),
)
def test_any_moment_in_any_zone(zone: str | None, unit: str, day: int | None, begins_at: time | None, at: int) -> None:
    limit = calendar(unit, zone, *((day, begins_at) if unit == "month" else ()))
    start, end = calendar_window(limit, at)
    assert start <= at < end
    for known in (at, start, end - 1):
        assert window_at(known, unit, zone, limit.anchor_day, limit.anchor_time) == (start, end)
    assert window_at(end, unit, zone, limit.anchor_day, limit.anchor_time).start == end


@given(
    own=st.builds(
        Anchor, st.none() | st.integers(1, 31), st.sampled_from([None, *ZONES]), st.none() | st.times().map(seconds)
    ),
    zone=st.sampled_from(ZONES),
    at=st.integers(62 * DAY_US, 27_000 * DAY_US),
    costs=st.lists(st.integers(1, 200), min_size=1, max_size=5),
)
def test_the_month_of_any_caller_ends_where_the_reference_says(
    trio: Callable[[], Trio], own: Anchor, zone: str | None, at: int, costs: list[int]
) -> None:
    """In memory, in Redis and by fractions: what is used stays used to the last microsecond, and no longer."""
    month = Limit(200, algorithm="fixed_window", calendar="month", timezone=zone, anchor_day=15)
    limit = month.anchored(own)
    start, end = calendar_window(limit, at)
    asked, used = trio(), 0
    for number, cost in enumerate(costs):
        asked.now = start + (end - 1 - start) * number // len(costs)
        verdict = asked.one(limit, cost)
        used += cost if verdict.allowed else 0
        assert verdict.reset_after == (end - asked.now) / 1_000_000
        assert limit.tag == month.tag or asked.one(month, 0).remaining == 200, "each day has its own counter"
    asked.now = end - 1
    assert asked.one(limit, 0).remaining == 200 - used
    asked.now = end
    assert asked.one(limit, 200).allowed


def begins(limit: Limit, first: str, last: str) -> list[str]:
    """The days on which the windows begin from one day to another."""
    at, found = moment(first, limit.timezone), []
    while at <= moment(last, limit.timezone):
        window = window_at(at, limit.calendar, limit.timezone, limit.anchor_day)
        found.append(datetime.fromtimestamp(window.start / 1_000_000, ZoneInfo(limit.timezone or "UTC")))
        at = window.end
    assert all(earlier < later for earlier, later in pairwise(found))
    assert {found.isoformat()[10:19] for found in found} == {"T00:00:00"}
    return [f"{found:%m-%d}" for found in found]


def test_a_limit_with_the_months_of_a_caller() -> None:
    month = calendar("month", "Europe/Berlin", 3)
    assert month.anchored(Anchor(15)) == calendar("month", "Europe/Berlin", 15)
    assert month.anchored(Anchor(timezone="Asia/Tokyo")) == calendar("month", "Asia/Tokyo", 3)
    own = month.anchored(Anchor(31, "Asia/Tokyo", time(9, 30)))
    assert own == calendar("month", "Asia/Tokyo", 31, time(9, 30))
    assert own.anchored(Anchor(3, "Europe/Berlin", time())).tag == month.tag
    assert len({each.tag for each in (month, own, month.anchored(Anchor(31, "Asia/Tokyo")), calendar("month"))}) == 4
    for other in (calendar("day"), calendar("year", "Asia/Tokyo"), Limit(5, 60), Limit(5, 3_600, "token_bucket")):
        assert other.anchored(Anchor(15, "Europe/Berlin", time(1))) is other


@pytest.mark.parametrize("zone", [None, "Europe/Berlin", "America/New_York"])
def test_months_from_the_31st(zone: str | None) -> None:
    common = begins(calendar("month", zone, 31), "2027-01-31", "2028-01-01")
    assert " ".join(common) == "01-31 02-28 03-31 04-30 05-31 06-30 07-31 08-31 09-30 10-31 11-30 12-31"
    leap = begins(calendar("month", zone, 31), "2028-01-31", "2028-04-30")
    assert leap == ["01-31", "02-29", "03-31", "04-30"]
    assert begins(calendar("month", zone, 30), "2027-01-30", "2027-04-29") == ["01-30", "02-28", "03-30"]
    assert begins(calendar("month", zone, 29), "2028-01-29", "2028-04-28") == ["01-29", "02-29", "03-29"]
    assert begins(calendar("month", zone), "2027-12-31", "2028-02-28") == ["12-01", "01-01", "02-01"]
    assert begins(calendar("year", zone), "2027-12-31", "2028-12-31") == ["01-01", "01-01"]
    assert begins(calendar("week", zone), "2027-12-31", "2028-01-09") == ["12-27", "01-03"]


def test_a_zone_is_found_without_listing_all_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    zone_of.cache_clear()
    monkeypatch.setattr("os.walk", None)  # the list is made with it
    with pytest.raises(TypeError):
        available_timezones()
    assert str(zone_of("Europe/Berlin")) == "Europe/Berlin"
    with pytest.raises(ValueError, match="is unknown here"):
        zone_of("Europe/Nowhere")
