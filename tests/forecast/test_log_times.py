"""Times in logs: understood completely, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.forecast.logs.times import TimeReader

AT = datetime(2026, 11, 22, 18, 0, 5, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("22/Nov/2026:18:00:05.123456 +0000", 123_456),
        ("22/Nov/2026:18:00:05.123 +0000", 123_000),
        ("22/Nov/2026:18:00:05.123456789 +0000", 123_456),
        ("22/Nov/2026:18:00:05,5 +0000", 500_000),
        ("22/Nov/2026:18:00:05.123", 123_000),  # HAProxy
        ("22/Nov/2026:20:00:05+0200", 0),
        ("22/Nov/2026:20:00:05 +02:00", 0),
        ("22/Nov/2026:18:00:05 GMT", 0),
        ("22/Nov/2026:18:00:05Z", 0),
        ("22/Nov/2026 18:00:05", 0),  # Django's own server
        ("2026-11-22T18:00:05.123456789Z", 123_456),
        ("2026-11-22 20:00:05 +0200", 0),
        ("2026/11/22 18:00:05", 0),
        ("2026-11-22T12:30:05.25-05:30", 250_000),
        ("Sun Nov 22 18:00:05 2026", 0),
        ("Sun Nov 22 18:00:05.123456 2026", 123_456),
        ("Sun Nov 22 18:00:05 UTC 2026", 0),
        ("Sun, 22 Nov 2026 18:00:05 GMT", 0),
        ("22 Nov 2026 18:00:05 +0000", 0),
        ("1795370405.123", 123_000),  # Apache's %{sec}t.%{msec_frac}t
        ("22/Nov/2026:12:30:05 -0530", 0),
        ("2026-11-22 18:00:05,250", 250_000),
        ("1795370405", 0),
        ("1795370405.000007", 7),
        ("1795370405000", 0),
        ("1795370405000000", 0),
        ("1795370405000000999", 0),
    ],
)
def test_every_shape_is_read_exactly(text: str, micros: int) -> None:
    read = TimeReader(UTC)
    assert read(text) == read(text) == us(AT) + micros
    assert TimeReader(UTC)(f"[{text}]") == us(AT) + micros


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-22",
        "20261122T180005",
        "2026-W47-7",
        "2026-11-22T18:00",
        "2026-11-22T18",
        "2026-11-22T18:00:05+02",
        "2026-11-22T18:00:05+9900",
        "2026-11-22T18:00:60Z",
        "2026-11-22T24:00:00Z",
        "2026-11/22 18:00:05",
        "22/Nov/2026:18:00:05 +0000 x",
        "22/nov/2026:18:00:05 +0000",
        "22/Foo/2026:18:00:05 +0000",
        "31/Feb/2026:18:00:05 +0000",
        "22/Nov/2026:18:00:5 +0000",
        "22/Nov/2026:18:00:05.1234567890 +0000",
        "22/Nov/26:18:00:05 +0000",
        "22/11/2026:18:00:05 +0000",
        "22/Nov/2026:18:00:05 PST",
        "22/Nov/2026:18:00:05.+0000",
        "Sun Nov 31 18:00:05 2026",
        "1.79E9",
        "-5",
        "nan",
        "18:00:05",
        "\uff12\uff12/Nov/2026:18:00:05 +0000",
    ],
)
def test_what_is_not_understood_completely_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="has no time in"):
        TimeReader(UTC)(text)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2990, 1, 1)),  # noqa: DTZ001
    st.integers(-14 * 4, 14 * 4).map(lambda quarters: timezone(timedelta(minutes=15 * quarters))),
    st.sampled_from(
        [
            "%d/%b/%Y:%H:%M:%S.%f %z",
            "%Y-%m-%dT%H:%M:%S.%f%z",
            "%a %b %d %H:%M:%S.%f %z %Y",
            "%a, %d %b %Y %H:%M:%S.%f %z",
        ]
    ),
)
def test_a_time_that_is_written_is_read_again(moment: datetime, zone: timezone, shape: str) -> None:
    moment = moment.replace(tzinfo=zone)
    year = f"{moment.year:04}"
    assert TimeReader(UTC)(moment.strftime(shape.replace("%Y", year))) == us(moment)


def test_times_without_a_zone_are_those_of_the_zone() -> None:
    read = TimeReader(BERLIN)
    assert read("22/Nov/2026:19:00:05") == us(AT)
    assert read.lacks == {"zones"}
    read = TimeReader(BERLIN)
    assert read("22/Nov/2026:18:00:05 +0000") == us(AT)
    assert read.lacks == set()


@pytest.mark.parametrize("shape", ["25/Oct/2026:{}:00", "2026-10-25 {}:00", "Sun Oct 25 {}:00 2026"])
def test_the_hour_that_comes_twice_is_ordered_by_the_file(shape: str) -> None:
    read = TimeReader(BERLIN)
    clocks = ["01:58", "02:00", "02:30", "02:29", "02:59", "02:00", "02:01", "02:00", "02:31", "02:59", "03:00"]
    minutes = [
        (read(shape.format(clock)) - us(datetime(2026, 10, 24, 23, 58, tzinfo=UTC))) // 60_000_000 for clock in clocks
    ]
    assert minutes == [0, 2, 32, 31, 61, 62, 63, 62, 93, 121, 122]


@pytest.mark.parametrize("text", ["29/Mar/2026:02:30:00", "2026-03-29 02:00:00"])
def test_an_hour_that_does_not_exist_is_no_time(text: str) -> None:
    """The log is of another zone."""
    with pytest.raises(ValueError, match="has no time in"):
        TimeReader(BERLIN)(text)


def test_years_follow_from_the_order_of_the_file() -> None:
    read = TimeReader(UTC, us(datetime(2027, 1, 2, tzinfo=UTC)))
    texts = ["Dec 31 23:59:58", "Dec 31 23:59:59", "Jan  1 00:00:00", "Dec 31 23:59:59", "Jan  1 00:00:01"]
    found = [datetime.fromtimestamp(read(text) / 1_000_000, UTC) for text in texts]
    assert [f"{moment:%Y-%j}" for moment in found] == ["2026-365", "2026-365", "2027-001", "2026-365", "2027-001"]
    assert read.lacks == {"years", "zones"}
    for latest, year in ((datetime(2027, 1, 2, tzinfo=UTC), 2026), (datetime(2026, 12, 31, tzinfo=UTC), 2026)):
        assert TimeReader(UTC, us(latest))("Sun Nov 22 18:00:05") == us(AT.replace(year=year))
    assert TimeReader(UTC, us(datetime(2029, 3, 1, tzinfo=UTC)))("Feb 29 00:00:00") == us(
        datetime(2028, 2, 29, tzinfo=UTC)
    )
