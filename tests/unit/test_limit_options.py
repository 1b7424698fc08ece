"""What a limit can have beside its quota and window: which algorithm takes what, and what goes together."""

from __future__ import annotations

from dataclasses import replace
from zoneinfo import available_timezones

import pytest

from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.engine.limits import MAX_ENTRIES

YEAR = 366 * 86_400

OPTIONS = {
    "burst": 5,
    "slots": 5,
    "anchor": "first_request",
    "refill": "interval",
    "calendar": "day",
    "timezone": "Europe/Berlin",
    "anchor_day": 15,
}


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_the_algorithm_lacks_is_rejected(name: str, algorithm: Algorithm) -> None:
    given = {name: OPTIONS[name]}
    if name in ("timezone", "anchor_day"):
        given["calendar"] = "month"
    if name in algorithm.options:
        assert getattr(Limit(5, None if "calendar" in given else 60, algorithm, **given), name) == OPTIONS[name]
    else:
        with pytest.raises(ValueError, match=rf"^({'|'.join(given)}): .* has no "):
            Limit(5, 60, algorithm, **given)


def test_the_options_of_each_algorithm() -> None:
    assert {str(algorithm): set(algorithm.options) for algorithm in Algorithm} == {
        "fixed_window": {"anchor", "calendar", "timezone", "anchor_day"},
        "sliding_window_log": set(),
        "sliding_window_counter": set(),
        "sliding_window_slots": {"slots"},
        "token_bucket": {"burst", "refill"},
        "gcra": {"burst"},
        "leaky_bucket": {"burst", "max_delay"},
        "concurrency": set(),
    }


@pytest.mark.parametrize("slots", [0, -1, 101, 5.0, True, "5"])
def test_impossible_slots(slots: object) -> None:
    with pytest.raises(ValueError, match=r"^slots: must be a whole number from 1 to 100"):
        Limit(5, 60, "sliding_window_slots", slots=slots)


def test_slots_finer_than_a_microsecond() -> None:
    assert Limit(5, 0.0001, "sliding_window_slots", slots=100).slots == 100
    with pytest.raises(ValueError, match=r"^slots: "):
        Limit(5, 0.000099, "sliding_window_slots", slots=100)


@pytest.mark.parametrize(
    ("algorithm", "name"), [("fixed_window", "anchor"), ("token_bucket", "refill"), ("fixed_window", "calendar")]
)
@pytest.mark.parametrize("value", ["", "hour", "Clock", 5, []])
def test_unknown_words(algorithm: str, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .* is unknown; choose one of "):
        Limit(5, 60, algorithm, **{name: value})


@pytest.mark.parametrize("algorithm", ["sliding_window_log", "concurrency"])
def test_what_keeps_every_request_has_a_small_quota(algorithm: str) -> None:
    assert Limit(MAX_ENTRIES, 60, algorithm).quota == 10_000
    with pytest.raises(ValueError, match=r"^quota: .* at most 10000"):
        Limit(MAX_ENTRIES + 1, 60, algorithm)


# Calendars


def calendar(calendar: str = "day", window: object = None, **options: object) -> Limit:
    return Limit(5, window, "fixed_window", calendar=calendar, **options)


def test_a_calendar_takes_the_place_of_the_window() -> None:
    assert calendar("day").window is None
    nominal = {"day": (86_400,), "week": (604_800,), "month": (28 * 86_400, 31 * 86_400), "year": (365 * 86_400, YEAR)}
    for name, windows in nominal.items():
        for window in windows:
            assert calendar(name, window) == calendar(name)
            assert calendar(name, window).window_us == max(windows) * 1_000_000
    assert Limit.parse("5/day", algorithm="fixed_window", calendar="day") == calendar("day")


@pytest.mark.parametrize(("name", "window"), [("day", 86_399), ("month", 2_592_001), ("year", 86_400), ("week", True)])
def test_a_window_that_contradicts_the_calendar(name: str, window: object) -> None:
    with pytest.raises(ValueError, match=r"^window: "):
        calendar(name, window)


def test_without_a_calendar_there_must_be_a_window() -> None:
    with pytest.raises(ValueError, match=r"^window: must be a number of seconds"):
        Limit(5, algorithm="fixed_window")


@pytest.mark.parametrize("zone", ["", "Europe/Atlantis", "../etc/passwd", "Europe", "/etc/passwd", 5, "CEST+1"])
def test_unknown_time_zones(zone: object) -> None:
    with pytest.raises(ValueError, match=r"^timezone: .* is unknown here"):
        calendar(timezone=zone)


@pytest.mark.parametrize("day", [0, 32, -1, 1.0, True, "15"])
def test_impossible_anchor_days(day: object) -> None:
    with pytest.raises(ValueError, match=r"^anchor_day: must be a day from 1 to 31"):
        calendar("month", anchor_day=day)


def test_what_does_not_go_together() -> None:
    with pytest.raises(ValueError, match=r"^anchor_day: "):
        calendar("week", anchor_day=3)
    with pytest.raises(ValueError, match=r"^timezone: only a calendar has one"):
        Limit(5, 60, "fixed_window", timezone="Europe/Berlin")
    with pytest.raises(ValueError, match=r"^anchor: a calendar's windows begin by the calendar"):
        calendar(anchor="first_request")


def test_each_meaning_has_counters_of_its_own() -> None:
    fixed, month = {"algorithm": "fixed_window"}, {"algorithm": "fixed_window", "calendar": "month"}
    meanings = [
        *(Limit(5, 86_400, algorithm) for algorithm in Algorithm),
        *(Limit(5, window, **fixed) for window in (8_640, 0.0864, 86_400.000001)),
        Limit(5, 86_400, anchor="first_request", **fixed),
        Limit(5, 86_400, "token_bucket", refill="interval"),
        *(Limit(5, 86_400, "sliding_window_slots", slots=slots) for slots in (1, 9, 11)),
        *(Limit(5, calendar=name, **fixed) for name in ("day", "week", "month", "year")),
        *(Limit(5, timezone=zone, **month) for zone in ("Europe/Berlin", "America/New_York")),
        *(Limit(5, anchor_day=day, **month) for day in (2, 3, 23, 30)),
        Limit(5, timezone="Europe/Berlin", anchor_day=2, **month),
    ]
    assert len({limit.tag for limit in meanings}) == len(meanings)
    for limit in meanings:
        assert replace(limit, quota=3, soft_quota=2).tag == limit.tag


BESIDE = ["localtime", "posixrules", "Factory", "posix/UTC", "right/UTC", "America", "tzdata.zi"]


@pytest.mark.parametrize("timezone", [*BESIDE, "europe/berlin", "", "../zone", "/zone", "a\0b", "x" * 300])
def test_files_beside_the_zones_are_none(timezone: str) -> None:
    with pytest.raises(ValueError, match=r"^timezone: .* is unknown here"):
        Limit(5, algorithm="fixed_window", calendar="day", timezone=timezone)


def test_every_zone_has_counters_of_its_own() -> None:
    zones = available_timezones() - {"localtime", "Factory"}
    tags = {Limit(5, algorithm="fixed_window", calendar="day", timezone=zone).tag for zone in zones}
    assert len(tags) == len(zones)
