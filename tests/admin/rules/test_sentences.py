"""The sentences about a limit are true of the engine."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from django.utils import translation

from django_ratelimiter.admin.rules.limits import sentences
from django_ratelimiter.engine import Algorithm, Charge, MemoryEngine
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.models.limits import NOT_GIVEN

MINUTE = 60_000_000


def row(algorithm: str = "fixed_window", rule: Rule | None = None, **columns: Any) -> RuleLimit:
    """A limit of 10 a minute that is not saved."""
    if not columns.get("calendar"):
        columns.setdefault("window_seconds", Decimal(60))
    return RuleLimit(**{"rule": rule or Rule(), "algorithm": algorithm, "quota": 10} | columns)


def admitted(limit: RuleLimit, *moments: int) -> int:
    """How many of 100 requests at each of these moments, in microseconds, are admitted in all."""
    engine = MemoryEngine()
    charge = Charge("ann", limit.to_limit())  # type: ignore[arg-type]
    return sum(engine.check([charge], now_us=at)[0].allowed for at in moments for _ in range(100))


@pytest.mark.parametrize("algorithm", Algorithm)
def test_every_algorithm_is_told(algorithm: Algorithm) -> None:
    told = sentences(row(algorithm))
    assert told.startswith("All callers together can ")
    assert "can retry" in told or "can be retried" in told, "when a rejected caller can"


@pytest.mark.parametrize(
    ("limit", "moments", "claim"),
    [
        (row(), [MINUTE - 1, MINUTE], "can together allow 20."),
        (row("sliding_window_slots", slots=6), [MINUTE // 6 - 1, MINUTE], "one of a minute can allow 20"),
        (row("sliding_window_slots", slots=1), [MINUTE - 1, MINUTE], "can together allow 20."),
        (row("token_bucket", refill="interval", burst=15), [MINUTE - 1, MINUTE], "25 around the start of a window"),
        (row("token_bucket", refill="interval", burst=5), [MINUTE - 1, MINUTE], "10 around the start of a window"),
        (row("token_bucket", burst=15), [0, *range(0, MINUTE + 1, 6_000_000)], "at most 25 in a minute"),
        (row("gcra", burst=5), [0, *range(0, MINUTE + 1, 6_000_000)], "at most 15 in a minute"),
    ],
)
def test_what_an_edge_admits(limit: RuleLimit, moments: list[int], claim: str) -> None:
    assert claim in sentences(limit)
    assert str(admitted(limit, *moments)) in re.findall("[0-9]+", claim)


def test_what_a_first_request_lets_in_at_the_end_of_its_window() -> None:
    limit = row(anchor="first_request")
    assert "can together allow 19." in sentences(limit)
    engine, charge = MemoryEngine(), Charge("ann", limit.to_limit())  # type: ignore[arg-type]
    assert engine.check([charge], now_us=0)[0].allowed
    ends = [MINUTE - 1] * 100 + [MINUTE] * 100
    assert sum(engine.check([charge], now_us=at)[0].allowed for at in ends) == 19


def test_no_shorter_stretch_of_slots_admits_more() -> None:
    limit = row("sliding_window_slots", slots=6)
    assert "No stretch of 50 seconds ever allows more" in sentences(limit)
    assert admitted(limit, MINUTE // 6 - 1, MINUTE // 6 + 50_000_000) == 20
    assert admitted(limit, MINUTE // 6 - 1, MINUTE // 6 - 1 + 50_000_000) == 10


def test_the_longest_that_a_leaky_bucket_holds() -> None:
    limit = row("leaky_bucket", burst=5)
    told = sentences(limit)
    assert "one per 6 seconds" in told
    assert "for 24 seconds at most" in told
    assert "Synchronous workers delay no requests" in told
    engine, charge = MemoryEngine(), Charge("ann", limit.to_limit())  # type: ignore[arg-type]
    delays = [engine.check([charge], now_us=0)[0] for _ in range(6)]
    assert [verdict.delay for verdict in delays if verdict.allowed] == [0, 6, 12, 18, 24]
    limit.max_delay_ms = 1500
    assert "reject requests that would have to wait longer than 1.5 seconds" in sentences(limit)
    assert "None is delayed" in sentences(row("leaky_bucket", burst=1))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"calendar": "day"}, "10 units per calendar day. The count restarts at midnight in UTC."),
        ({"calendar": "week", "timezone": "Asia/Tokyo"}, "on Mondays at midnight in Asia/Tokyo"),
        ({"calendar": "month", "anchor_day": 5}, "on day 5 of each month, at midnight in UTC"),
        ({"calendar": "month", "anchor_day": 31}, "on day 31 of each month, or the last day of a shorter one"),
        ({"calendar": "year"}, "on the first of January"),
        ({"window_seconds": Decimal(90)}, "each window of 90 seconds by the clock"),
        ({"quota": 1, "window_seconds": Decimal("0.25")}, "can use 1 unit per 0.25 seconds"),
        ({"algorithm": "token_bucket", "quota": 7}, "about one per 8.571 seconds"),
        ({"soft_quota": 8}, "Usage beyond 8 is still allowed"),
        ({"unlimited": True}, "Callers of every other tier are neither limited"),
        ({"quota": None}, ""),
    ],
)
def test_options(columns: dict[str, Any], says: str) -> None:
    told = sentences(row(**columns))
    assert says in told
    assert bool(told) == bool(says)


@pytest.mark.parametrize(
    ("rule", "tier", "says"),
    [
        ({}, None, "All callers together can use 10 units per minute."),
        ({"partition_by": ["ip/48"]}, None, "Each network of 48 bits can use"),
        ({"partition_by": ["user", "ip"]}, None, "Each combination of user and IP address can use"),
        ({"partition_by": ["ip"]}, "Free", "Each IP address, in the tier “Free”, can use"),
        ({"partition_by": {"ip": 1}}, None, "All callers together can use"),
        ({"cost": 5}, None, "One request uses 5."),
        ({"charge_when": "success"}, None, "refunded if the response is a failure"),
        ({"charge_when": "failure"}, None, "refunded unless the response is a failure"),
        ({"count_refusals": True}, None, "Rejected requests count too"),
    ],
)
def test_what_the_rule_adds(rule: dict[str, Any], tier: str | None, says: str) -> None:
    assert says in sentences(row(rule=Rule(**rule), tier=tier and Tier(slug="free", name=tier)))


def test_a_new_option_is_to_be_told() -> None:
    """A new column must be described by its algorithm, and in `rules/formatting.py`, and then here."""
    told = {"quota", "window_seconds", "burst", "soft_quota", "slots", "anchor", "refill", "calendar", "timezone"}
    assert set(NOT_GIVEN) == told | {"anchor_day", "max_delay_ms"}


@pytest.mark.parametrize(
    ("rule", "columns", "says"),
    [
        ({}, {}, "Für alle Aufrufer zusammen gibt es 10 Einheiten pro Minute."),
        ({"partition_by": ["ip"]}, {"quota": 1}, "Je IP-Adresse gibt es 1 Einheit pro Minute."),
        ({}, {"algorithm": "token_bucket", "quota": 7}, "etwa eine pro 8,571 Sekunden"),
        ({}, {"window_seconds": Decimal(86_400)}, "mit jedem Fenster über einen Tag nach der Uhr"),
    ],
)
def test_in_german(rule: dict[str, Any], columns: dict[str, Any], says: str) -> None:
    with translation.override("de"):
        assert says in sentences(row(rule=Rule(**rule), **columns))
