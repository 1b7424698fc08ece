"""A limit that cannot be enforced exactly cannot be built; the rate texts are read strictly."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.engine.limits import EXACT, MAX_UNITS
from tests.engine.strategies import limits
from tests.reference import capacity_of, period_of

YEAR = 366 * 86_400


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


@pytest.mark.parametrize("name", ["quota", "burst", "soft_quota"])
@pytest.mark.parametrize("value", [0, -1, MAX_UNITS + 1, EXACT, 1.0, True, "5", Decimal(5)])
def test_impossible_units(name: str, value: object) -> None:
    given = {"quota": 10, name: value}
    right = "at least 1" if type(value) is int and value < 1 else "a whole number"
    with pytest.raises(ValueError, match=f"^{name}: must be {right}"):
        Limit(window=60, algorithm="token_bucket", **given)


def test_a_quota_is_not_optional() -> None:
    with pytest.raises(ValueError, match=r"^quota: must be a whole number"):
        Limit(None, 60)


@pytest.mark.parametrize(
    "window",
    [0, -1, 0.0, YEAR + 1, 10**400, float("nan"), float("inf"), *map(Decimal, ("NaN", "sNaN", "Infinity", "-1"))],
)
def test_impossible_windows(window: float | Decimal) -> None:
    with pytest.raises(ValueError, match=r"^window: must be above 0"):
        Limit(5, window)


@pytest.mark.parametrize("window", [1e-7, 1.0000001, Decimal("60." + "0" * 40 + "1")])
def test_windows_finer_than_a_microsecond(window: float | Decimal) -> None:
    with pytest.raises(ValueError, match=r"^window: must be a whole number of microseconds"):
        Limit(5, window)


@pytest.mark.parametrize("window", [True, "60", None, [60]])
def test_windows_that_are_no_number(window: object) -> None:
    with pytest.raises(ValueError, match=r"^window: must be a number of seconds"):
        Limit(5, window)


@pytest.mark.parametrize("algorithm", ["leaky", "", None, [], "Token_Bucket"])
def test_unknown_algorithms(algorithm: object) -> None:
    with pytest.raises(ValueError, match=r"^algorithm: .* choose one of fixed_window, .*, concurrency"):
        Limit(5, 60, algorithm)


@pytest.mark.parametrize(("burst", "soft_quota"), [(None, 5), (None, 6), (3, 3), (3, 4), (9, 5)])
def test_a_soft_quota_stays_below_quota_and_burst(burst: int | None, soft_quota: int) -> None:
    with pytest.raises(ValueError, match=r"^soft_quota: must be below"):
        Limit(5, 60, "token_bucket", burst, soft_quota)


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
        ("1/second", 1, 1),
        ("10 per 30 seconds", 10, 30),
        ("10/30 seconds", 10, 30),
        (" 5 / Hour ", 5, 3_600),
        ("7 per 2 days", 7, 172_800),
        ("5/week", 5, 604_800),
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


@given(limit=limits(), share=st.floats(0.000_1, 1), least=st.integers(1, 10))
def test_a_share_is_a_limit_again(limit: Limit, share: float, least: int) -> None:
    part = limit.scaled(share, min(least, limit.capacity))
    assert part.capacity <= limit.capacity
    assert part.tag == limit.tag
