"""The demo's arithmetic: it must hold for every right answer, and fail for wrong ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.redis.partition_notes import WEIGHED_EXACTLY
from example_project import catalogue
from example_project.catalogue import BUCKET, DAY, EXACT, FIXED, HOUR, SLIDING
from example_project.demo import traffic
from example_project.demo.expectation import Range, Seen, expected_of_key
from example_project.demo.results import traffic_rows, usage_rows
from example_project.demo.scenario import STREAMS, Caller, Stream
from example_project.demo.servers import WORKERS
from example_project.demo.traffic import Answer

NOON = 1_800_014_400.0  # a whole hour, twelve of them after midnight UTC


def answers(
    limits: Sequence[catalogue.Limit], moments: Iterable[float], *, cost: int = 1, charged: int = 1
) -> list[Seen]:
    """What clients see of requests that the engine decides at these moments, each charged `charged` times."""
    engine, lag = MemoryEngine(), random.Random(1)
    given = [Limit(each.quota, each.window, each.algorithm, burst=each.burst) for each in limits]
    charges = [Charge("k", limit, cost) for limit in given]
    seen = []
    for moment in moments:
        calls = [engine.check(charges, now_us=int(moment * 1_000_000)) for _ in range(charged)]
        passed = all(verdict.allowed for verdict in calls[0])
        seen.append(Seen(moment - lag.random() / 50, moment + lag.random() / 50, passed, not passed))
    return seen


def evenly(start: float) -> list[float]:
    """200 moments in 20 seconds."""
    return [start + number / 10 for number in range(200)]


def admitted(seen: Sequence[Seen]) -> int:
    return sum(one.admitted for one in seen)


CASES = {
    "a day's quota": ([catalogue.Limit(40, DAY, FIXED)], 1, Range(40, 40)),
    "a request that costs five": ([catalogue.Limit(100, DAY, FIXED)], 5, Range(20, 20)),
    "a sliding hour": ([catalogue.Limit(40, HOUR, SLIDING)], 1, Range(40, 40)),
    "an exact hour": ([catalogue.Limit(40, HOUR, EXACT)], 1, Range(40, 40)),
    "a bucket that hardly refills": ([catalogue.Limit(1, 60, BUCKET, burst=30)], 1, Range(30, 30)),
    "two limits": ([catalogue.Limit(4, 1, BUCKET, burst=10), catalogue.Limit(40, DAY, FIXED)], 1, Range(40, 40)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_exact_expectation_is_met_and_missed_by_who_charges_twice_or_admits_everything(name: str) -> None:
    limits, cost, expected = CASES[name]
    right = answers(limits, evenly(NOON + 60), cost=cost)
    wrong = answers(limits, evenly(NOON + 60), cost=cost, charged=2)
    assert expected_of_key(limits, cost, right) == expected
    assert admitted(right) == expected.low
    assert not expected_of_key(limits, cost, wrong).holds(admitted(wrong))
    everything = [Seen(NOON, NOON + 0.01, admitted=True, rejected_here=False)] * 200
    assert expected_of_key(limits, cost, everything).high <= expected.high < 200


@pytest.mark.parametrize("seed", range(40))
def test_the_range_holds_whatever_the_moments_are(seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.choice(
        [
            catalogue.Limit(chance.randint(1, 20), chance.choice([1, 2, 60]), BUCKET, burst=chance.randint(2, 40)),
            catalogue.Limit(chance.randint(2, 40), chance.choice([3, 7, 60]), chance.choice([SLIDING, EXACT])),
            catalogue.Limit(chance.randint(2, 40), chance.choice([3, 7, 60]), FIXED),
        ]
    )
    start = NOON + chance.random() * 100
    moments = sorted(start + chance.random() ** 2 * 20 for _ in range(chance.randint(1, 300)))
    cost = chance.choice([1, 1, 2])
    seen = answers([limit], moments, cost=cost)
    assert expected_of_key([limit], cost, seen).holds(admitted(seen))


def test_a_request_that_only_another_rule_rejected_is_as_if_it_had_never_come() -> None:
    limit = catalogue.Limit(40, DAY, FIXED)
    elsewhere = [Seen(NOON, NOON + 0.01, admitted=False, rejected_here=False)] * 100
    few = [Seen(NOON, NOON + 0.01, admitted=True, rejected_here=False)] * 30
    assert expected_of_key([limit], 1, [*elsewhere, *few]) == Range(30, 30)
    assert expected_of_key([limit], 1, elsewhere) == Range(0, 0)


def whole_traffic(**reject_after: int) -> Iterator[Answer]:
    """An answer for every request of the scenario; each rule named admits so many, the others everything."""
    for stream in STREAMS:
        for caller in stream.callers * stream.count:
            met = [rule.slug.replace("-", "_") for rule in stream.rules_for(caller) if rule.mode == "enforce"]
            rejecting = frozenset(slug.replace("_", "-") for slug in met if reject_after.get(slug) == 0)
            for slug in met if not rejecting else ():
                reject_after[slug] = reject_after.get(slug, 10**9) - 1
            yield Answer(stream, caller, NOON, NOON + 0.01, 429 if rejecting else 200, rejecting)


def test_the_callers_of_all_requests_are_counted() -> None:
    """Beyond this, they are estimated: the demo's lists of top callers would not agree with its totals."""
    calls = 2 * sum(stream.count * len(stream.callers) for stream in STREAMS)  # a throttle makes a second one
    assert calls < WORKERS * WEIGHED_EXACTLY


def test_the_scenario_meets_every_rule_and_tier_of_the_catalogue() -> None:
    met = {(row.rule.slug, row.tier) for row in traffic_rows(list(whole_traffic()))}
    assert {slug for slug, _ in met} == {rule.slug for rule in catalogue.RULES}
    assert {tier for _, tier in met} >= {tier.slug for tier in catalogue.TIERS}
    assert {(rule.slug, tier) for rule in catalogue.RULES for tier in rule.limits if tier} <= met


def test_one_counter_for_the_whole_site_is_one_row_and_one_usage_row_for_each_tier() -> None:
    seen = list(whole_traffic(reports_whole_site=100))
    [row] = [row for row in traffic_rows(seen) if row.rule.slug == "reports-whole-site"]
    assert (row.tier, row.sent, row.admitted, row.rejected, row.agrees) == (None, 120, 100, 20, True)
    usage = [row for row in usage_rows(seen) if row.rule.slug == "reports-whole-site"]
    assert [row.tier for row in usage] == [tier.slug for tier in catalogue.TIERS]
    assert (sum(row.total for row in usage), sum(row.rejected for row in usage)) == (120, 20)


def test_two_keys_that_err_in_opposite_directions_do_not_agree() -> None:
    one, other = (Caller("free", "192.0.2.1", api_key=key) for key in ("key-free-1", "key-free-2"))
    stream = Stream("/orders/", (one, other), 80)
    seen = [Answer(stream, one, NOON, NOON, 200)] * 50 + [Answer(stream, other, NOON, NOON, 200)] * 30
    rejected = frozenset({"orders-per-key"})
    seen += [Answer(stream, caller, NOON, NOON, 429, rejected) for caller in (one, other) for _ in range(30)]
    [row] = traffic_rows(seen)
    assert row.expected.holds(row.admitted)
    assert not row.agrees


PAULA = Caller("pro", "192.0.2.1", user="paula")
DOCUMENT = b'{"status": 429, "violated-policies": ["export-paced-and-capped-86400"]}'
FIELD = '"reports-whole-site";r=4;t=9,"export-paced-and-capped-1";r=3;t=0'


@pytest.mark.parametrize(
    ("stream", "body", "field", "expected"),
    [
        (Stream("/api/export/", (PAULA,), 1), DOCUMENT, "", {"export-paced-and-capped"}),
        (Stream("/api/reports/", (PAULA,), 1, method="POST"), b'{"detail": ""}', FIELD, {"reports-whole-site"}),
        (Stream("/orders/", (Caller("pro", "192.0.2.1", api_key="key-pro"),), 1), DOCUMENT, "", set()),
    ],
)
def test_a_rejection_is_laid_to_the_rules_that_the_answer_names(
    monkeypatch: pytest.MonkeyPatch, stream: Stream, body: bytes, field: str, expected: set[str]
) -> None:
    """By the problem document of plain views, and by the field alone as of DRF."""
    response = SimpleNamespace(status=429, headers={"X-Process-ID": "7", "RateLimit": field}, read=lambda: body)
    http: Any = SimpleNamespace(request=lambda *_given, **_headers: None, getresponse=lambda: response)
    monkeypatch.setattr(traffic.http.client, "HTTPConnection", lambda *_given, **_options: http)
    answer = traffic.Connection(80).send(stream, stream.callers[0])
    assert (answer.status, answer.process, answer.rejected_by) == (429, 7, expected)
    assert ("names no rule" in answer.error) is not bool(expected)
