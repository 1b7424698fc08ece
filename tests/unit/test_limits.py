"""A limit that cannot be enforced exactly cannot be built; its options go together; rate texts are read strictly."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, time
from decimal import Decimal
from fractions import Fraction
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.engine.limits import EXACT, MAX_ENTRIES, MAX_UNITS
from tests.engine.strategies import limits
from tests.reference import capacity_of, period_of

YEAR = 366 * 86_400
SLOTS, DAY = {"algorithm": "sliding_window_slots"}, {"algorithm": "fixed_window", "calendar": "day"}
MONTH = {**DAY, "calendar": "month"}
UNKNOWN = ["", "leaky", "Token_Bucket", "Clock", "hour", []]
#: Files beside those of the zones.
BESIDE = ["localtime", "posixrules", "Factory", "posix/UTC", "right/UTC", "America", "tzdata.zi"]


def test_defaults() -> None:
    limit = Limit(100, 60)
    assert limit.algorithm is Algorithm.SLIDING_WINDOW_COUNTER
    assert (limit.capacity, limit.burst, limit.soft_quota) == (100, None, None)
    assert Limit(100, 60, "token_bucket", burst=20).capacity == 20


@pytest.mark.parametrize("window", [60, 60.0, Decimal("60.000000")])
def test_equal_windows_make_equal_limits(window: float | Decimal) -> None:
    limit = Limit(5, window)
    assert limit == Limit(5, 60)
    assert hash(limit) == hash(Limit(5, 60))
    assert limit.tag == Limit(5, 60).tag


def test_changed_units_keep_the_counters_and_changed_meaning_starts_new_ones() -> None:
    limit = Limit(5, 60, "token_bucket")
    assert limit.tag == Limit(9, 60, "token_bucket", burst=3, soft_quota=2).tag
    assert len({limit.tag, Limit(5, 61, "token_bucket").tag, Limit(5, 60).tag}) == 3


def test_the_most_units_are_those_of_the_docs() -> None:
    assert MAX_UNITS == 2**48 - 1


#: What is rejected, with these words: by the fields beside it, the name of the field, and values of it.
WRONG: list[tuple[str, dict[str, object], str, list[object]]] = [
    *(
        (f"^{name}: must be {right}", {"quota": 10, "algorithm": "token_bucket"}, name, values)
        for name in ("quota", "burst", "soft_quota")
        for right, values in (
            ("at least 1", [0, -1]),
            ("a whole number", [MAX_UNITS + 1, EXACT, 1.0, True, "5", Decimal(5)]),
        )
    ),
    ("^quota: must be a whole number", {}, "quota", [None]),
    *(
        ("^quota: .* at most 10000", {"algorithm": algorithm}, "quota", [MAX_ENTRIES + 1])
        for algorithm in ("sliding_window_log", "concurrency")  # what keeps every request
    ),
    ("^window: must be above 0", {}, "window", [0, -1, 0.0, YEAR + 1, 10**400, float("nan"), float("inf")]),
    ("^window: must be above 0", {}, "window", [*map(Decimal, ("NaN", "sNaN", "Infinity", "-1"))]),
    ("^window: must be a whole number of micros", {}, "window", [1e-7, 1.0000001, Decimal("60." + "0" * 40 + "1")]),
    ("^window: must be a number of seconds", {}, "window", [True, "60", None, [60]]),
    ("^algorithm: .* choose one of fixed_window, .*, concurrency", {}, "algorithm", UNKNOWN),
    ("^soft_quota: must be below", {"algorithm": "token_bucket"}, "soft_quota", [5, 6]),
    ("^soft_quota: must be below", {"algorithm": "token_bucket", "burst": 3}, "soft_quota", [3, 4]),
    ("^soft_quota: must be below", {"algorithm": "token_bucket", "burst": 9}, "soft_quota", [5]),
    ("^slots: must be a whole number from 1 to 100", SLOTS, "slots", [0, -1, 101, 5.0, True, "5"]),
    ("^slots: ", {**SLOTS, "window": 0.000099}, "slots", [100]),  # finer than a microsecond
    ("^anchor: .* is unknown; choose one of ", {"algorithm": "fixed_window"}, "anchor", UNKNOWN),
    ("^refill: .* is unknown; choose one of ", {"algorithm": "token_bucket"}, "refill", UNKNOWN),
    ("^calendar: .* is unknown; choose one of ", {"algorithm": "fixed_window"}, "calendar", UNKNOWN),
    ("^timezone: .* is unknown here", DAY, "timezone", ["", "Europe/Atlantis", "Europe", "europe/berlin", 5, "CEST+1"]),
    ("^timezone: .* is unknown here", DAY, "timezone", ["../etc/passwd", "/etc/passwd", "../zone", "a\0b", "x" * 300]),
    ("^timezone: .* is unknown here", DAY, "timezone", BESIDE),
    ("^timezone: only a calendar has one", {"algorithm": "fixed_window"}, "timezone", ["Europe/Berlin"]),
    ("^anchor_day: must be a day from 1 to 31", MONTH, "anchor_day", [0, 32, -1, 1.0, True, "15"]),
    ("^anchor_day: ", {**MONTH, "calendar": "week"}, "anchor_day", [3]),
    ("^anchor_time: must be the time", MONTH, "anchor_time", ["09:30", 930, time(9, tzinfo=UTC), time(9, 0, 0, 1)]),
    ("^anchor_time: ", {**MONTH, "calendar": "week"}, "anchor_time", [time(9)]),
    ("^anchor: a calendar's windows begin by the calendar", DAY, "anchor", ["first_request"]),
    # A window that contradicts the calendar.
    ("^window: ", DAY, "window", [86_399]),
    ("^window: ", MONTH, "window", [2_592_001]),
    ("^window: ", {**DAY, "calendar": "year"}, "window", [86_400]),
    ("^window: ", {**DAY, "calendar": "week"}, "window", [True]),
]


@pytest.mark.parametrize(("words", "given", "name", "values"), WRONG)
def test_a_limit_that_cannot_be_enforced_exactly_is_rejected(
    words: str, given: dict[str, object], name: str, values: list[object]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=words):
            Limit(**{"quota": 5, "window": None if "calendar" in given else 60, **given, name: value})


def test_a_bucket_that_takes_centuries_to_fill() -> None:
    Limit(1, YEAR, "token_bucket", burst=100)
    with pytest.raises(ValueError, match=r"^burst: 101 units would take more than 100 years"):
        Limit(1, YEAR, "token_bucket", burst=101)


def test_time_is_coarsened_only_where_it_must_be() -> None:
    assert Limit(100, YEAR).terms.tick_us == 1
    assert Limit(10_000_000, 3_600).terms.tick_us == 1_000
    assert Limit(1_000_000_000, YEAR, "token_bucket").terms.tick_us == 1  # the common divisor is large
    assert Limit(999_999_937, 86_400, "token_bucket").terms.tick_us == 1_000_000
    assert Limit(MAX_UNITS, YEAR, "fixed_window").terms.tick_us == 1  # no product, nothing to overflow
    assert Limit(MAX_UNITS, YEAR, "sliding_window_slots", slots=100).terms.tick_us == 1
    assert Limit(MAX_UNITS, YEAR, "token_bucket", refill="interval").capacity == MAX_UNITS


@pytest.mark.parametrize("algorithm", ["sliding_window_counter", "token_bucket", "gcra", "leaky_bucket"])
def test_what_cannot_be_exact_in_any_tick(algorithm: Algorithm) -> None:
    with pytest.raises(ValueError, match="cannot be computed exactly"):
        Limit(MAX_UNITS, YEAR, algorithm)
    with pytest.raises(ValueError, match="make the window a whole number of seconds"):
        Limit(999_999_937, Decimal("86400.000001"), algorithm)


@given(limit=limits())
def test_the_terms_say_what_the_limit_says(limit: Limit) -> None:
    terms = limit.terms
    assert terms.capacity == capacity_of(limit)
    assert terms.capacity - terms.soft_floor == (limit.soft_quota or terms.capacity)
    if "burst" in limit.algorithm.options:
        assert Fraction(terms.rate, terms.period * terms.tick_us) == Fraction(limit.quota, period_of(limit))
        assert max(terms.capacity, terms.rate) * terms.period < EXACT // 2
    else:
        assert terms.period * terms.tick_us == period_of(limit)
    if limit.algorithm is Algorithm.SLIDING_WINDOW_COUNTER:
        assert terms.capacity * terms.period < EXACT // 2
    assert len(limit.packed) == 7 * 8


@pytest.mark.parametrize(
    ("rate", "quota", "window"),
    [
        ("100/minute", 100, 60),
        ("10 per 30 seconds", 10, 30),
        ("10/30 seconds", 10, 30),
        (" 5 / Hour ", 5, 3_600),
        ("7 per 2 days", 7, 172_800),
        ("1 per 0.5 second", 1, Decimal("0.5")),
        ("3/1.5minutes", 3, 90),
    ],
)
def test_rates(rate: str, quota: int, window: int | Decimal) -> None:
    assert Limit.parse(rate) == Limit(quota, window)


def test_a_rate_takes_options() -> None:
    assert Limit.parse("10/minute", algorithm="token_bucket", burst=20) == Limit(10, 60, "token_bucket", 20)


@pytest.mark.parametrize(
    "rate",
    [
        *("", "100", "/minute", "100/", "100/month", "100/m", "100/s", "5/hour garbage", "-5/hour", "+5/hour"),
        *("5.5/hour", "1e3/hour", "5//hour", "5 hour", "5per hour", "5perhour", "5/hourss", "5/1.hour", "5/.5hour"),
        *("٣/hour", "5/hour\n5/hour", "5,000/hour", "5\u2003per\u2003hour", None, 5, b"5/hour"),
    ],
)
def test_texts_that_are_no_rate(rate: object) -> None:
    with pytest.raises(ValueError, match=r"^rate: .* is not a rate; write a whole number and a unit"):
        Limit.parse(rate)


@pytest.mark.parametrize("rate", ["0/minute", "5/0 minutes", "5 per 367 days"])
def test_rates_that_no_limit_can_have(rate: str) -> None:
    with pytest.raises(ValueError, match=r"^(quota|window): "):
        Limit.parse(rate)


def test_a_share_of_a_limit() -> None:
    assert Limit(10, 60, soft_quota=8).scaled(0.5) == Limit(5, 60)
    assert Limit(10, 60).scaled(0.29) == Limit(2, 60)
    assert Limit(100, 60).scaled(0.29) == Limit(29, 60), "0.29 x 100 is 28.999999999999996 in floating point"
    assert Limit(1, 60).scaled(0.5) == Limit(1, 60)
    assert Limit(10, 60, "token_bucket", burst=31).scaled(0.5) == Limit(5, 60, "token_bucket", burst=15)


def test_a_share_keeps_what_the_limit_means() -> None:
    month = Limit(10, algorithm="fixed_window", calendar="month", timezone="Europe/Berlin", anchor_day=31, soft_quota=3)
    assert month.scaled(0.5) == replace(month, quota=5, soft_quota=None)
    slots = Limit(10, 60, "sliding_window_slots", slots=6)
    assert slots.scaled(0.5) == replace(slots, quota=5)


def test_a_share_that_a_cost_still_fits_into() -> None:
    assert Limit(10, 60).scaled(0.5, least=8) == Limit(8, 60)
    assert Limit(10, 60, "token_bucket", burst=20).scaled(0.5, least=18) == Limit(5, 60, "token_bucket", burst=18)


def test_a_share_that_cannot_be_reckoned_exactly() -> None:
    whole = Limit(3_829_923, 381_484.5, "token_bucket", burst=35_206_863)
    assert whole.scaled(0.5) == whole


@given(limit=limits(), factor=st.decimals("0.001", "99999.999", places=3), least=st.integers(1, 10))
def test_a_limit_times_a_factor_counts_as_before(limit: Limit, factor: Decimal, least: int) -> None:
    found = limit.times(factor, min(least, limit.capacity))
    assert found.tag == limit.tag
    assert found.capacity >= min(least, limit.capacity)
    assert factor > 1 or found.capacity <= limit.capacity


def test_a_factor_multiplies_quota_burst_and_soft_quota_up_to_their_maxima() -> None:
    limit = Limit(10, 60, "token_bucket", burst=25, soft_quota=5)
    assert limit.times(2) == Limit(20, 60, "token_bucket", burst=50, soft_quota=10)
    assert limit.times(0.5) == Limit(5, 60, "token_bucket", burst=12, soft_quota=2)
    assert limit.times(0.001) == Limit(1, 60, "token_bucket", burst=1)
    assert Limit(8_000, 60, "sliding_window_log").times(2).quota == 10_000
    assert Limit(2**47, 60, "fixed_window").times(9).quota == 2**48 - 1


def test_what_is_just_right() -> None:
    assert Limit(5, 0.0001, "sliding_window_slots", slots=100).slots == 100
    for algorithm in ("sliding_window_log", "concurrency"):
        assert Limit(MAX_ENTRIES, 60, algorithm).quota == 10_000


OPTIONS = {
    "burst": 5,
    "slots": 5,
    "anchor": "first_request",
    "refill": "interval",
    "calendar": "day",
    "timezone": "Europe/Berlin",
    "anchor_day": 15,
    "anchor_time": time(9, 30),
}


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_that_the_algorithm_lacks_is_rejected(name: str, algorithm: Algorithm) -> None:
    given = {name: OPTIONS[name]}
    if name in ("timezone", "anchor_day", "anchor_time"):
        given["calendar"] = "month"
    if name in algorithm.options:
        assert getattr(Limit(5, None if "calendar" in given else 60, algorithm, **given), name) == OPTIONS[name]
    else:
        with pytest.raises(ValueError, match=rf"^({'|'.join(given)}): .* has no "):
            Limit(5, 60, algorithm, **given)


def test_the_options_of_each_algorithm() -> None:
    assert {str(algorithm): set(algorithm.options) for algorithm in Algorithm} == {
        "fixed_window": {"anchor", "calendar", "timezone", "anchor_day", "anchor_time"},
        "sliding_window_log": set(),
        "sliding_window_counter": set(),
        "sliding_window_slots": {"slots"},
        "token_bucket": {"burst", "refill"},
        "gcra": {"burst"},
        "leaky_bucket": {"burst", "max_delay"},
        "concurrency": set(),
    }


def test_a_calendar_takes_the_place_of_the_window() -> None:
    day = Limit(5, **DAY)
    assert day.window is None
    nominal = {"day": (86_400,), "week": (604_800,), "month": (28 * 86_400, 31 * 86_400), "year": (365 * 86_400, YEAR)}
    for name, windows in nominal.items():
        for window in windows:
            limit = Limit(5, window, "fixed_window", calendar=name)
            assert limit == Limit(5, algorithm="fixed_window", calendar=name)
            assert limit.window_us == max(windows) * 1_000_000
    assert Limit.parse("5/day", **DAY) == day


def test_each_meaning_has_counters_of_its_own() -> None:
    fixed = {"algorithm": "fixed_window"}
    meanings = [
        *(Limit(5, 86_400, algorithm) for algorithm in Algorithm),
        *(Limit(5, window, **fixed) for window in (8_640, 0.0864, 86_400.000001)),
        Limit(5, 86_400, anchor="first_request", **fixed),
        Limit(5, 86_400, "token_bucket", refill="interval"),
        *(Limit(5, 86_400, "sliding_window_slots", slots=slots) for slots in (1, 9, 11)),
        *(Limit(5, calendar=name, **fixed) for name in ("day", "week", "month", "year")),
        *(Limit(5, timezone=zone, **MONTH) for zone in ("Europe/Berlin", "America/New_York")),
        *(Limit(5, anchor_day=day, **MONTH) for day in (2, 3, 23, 30)),
        Limit(5, timezone="Europe/Berlin", anchor_day=2, **MONTH),
        *(Limit(5, anchor_time=start, **MONTH) for start in (time(1), time(0, 1), time(0, 0, 1), time(10))),
    ]
    assert len({limit.tag for limit in meanings}) == len(meanings)
    for limit in meanings:
        assert replace(limit, quota=3, soft_quota=2).tag == limit.tag


def test_every_zone_has_counters_of_its_own() -> None:
    zones = available_timezones() - {"localtime", "Factory"}
    tags = {Limit(5, timezone=zone, **DAY).tag for zone in zones}
    assert len(tags) == len(zones)
