"""The demo's arithmetic: it must hold for every right answer, and fail for wrong ones."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from example_project import catalogue
from example_project.catalogue import BUCKET, DAY, FIXED, HOUR, SLIDING
from example_project.demo.expectation import Range, Seen, expected_of_key
from example_project.demo.results import traffic_rows, usage_rows
from example_project.demo.scenario import STREAMS, Caller, Stream
from example_project.demo.suggestions import SUGGESTIONS, Suggestion
from example_project.demo.traffic import Answer, Connection

from .test_docs import ROOT

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


def evenly(count: int, start: float, seconds: float) -> list[float]:
    return [start + seconds * number / count for number in range(count)]


def admitted(seen: Sequence[Seen]) -> int:
    return sum(one.admitted for one in seen)


CASES = {
    "a day's quota": ([catalogue.Limit(40, DAY, FIXED)], 1, Range(40, 40)),
    "a request that costs five": ([catalogue.Limit(100, DAY, FIXED)], 5, Range(20, 20)),
    "a sliding hour": ([catalogue.Limit(40, HOUR, SLIDING)], 1, Range(40, 40)),
    "a bucket that hardly refills": ([catalogue.Limit(1, 60, BUCKET, burst=30)], 1, Range(30, 30)),
    "two limits": ([catalogue.Limit(4, 1, BUCKET, burst=10), catalogue.Limit(40, DAY, FIXED)], 1, Range(40, 40)),
    "no limit": ([catalogue.UNLIMITED], 1, Range(200, 200)),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "no limit"])
def test_an_exact_expectation_is_met_by_the_engine_and_missed_when_it_charges_twice(name: str) -> None:
    limits, cost, expected = CASES[name]
    moments = evenly(200, NOON + 60, 20)
    right = answers(limits, moments, cost=cost)
    wrong = answers(limits, moments, cost=cost, charged=2)
    assert expected_of_key(limits, cost, right) == expected
    assert admitted(right) == expected.low
    assert not expected_of_key(limits, cost, wrong).holds(admitted(wrong))


def test_a_limiter_that_admits_everything_is_noticed() -> None:
    seen = [Seen(NOON, NOON + 0.01, admitted=True, rejected_here=False)] * 200
    for limits, cost, expected in CASES.values():
        if limits != [catalogue.UNLIMITED]:
            assert expected_of_key(limits, cost, seen).high <= expected.high < 200


@pytest.mark.parametrize("seed", range(40))
def test_the_range_holds_whatever_the_moments_are(seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.choice(
        [
            catalogue.Limit(chance.randint(1, 20), chance.choice([1, 2, 60]), BUCKET, burst=chance.randint(2, 40)),
            catalogue.Limit(chance.randint(2, 40), chance.choice([3, 7, 60]), SLIDING),
            catalogue.Limit(chance.randint(2, 40), chance.choice([3, 7, 60]), FIXED),
        ]
    )
    start = NOON + chance.random() * 100
    moments = sorted(start + chance.random() ** 2 * 20 for _ in range(chance.randint(1, 300)))
    cost = chance.choice([1, 1, 2])
    seen = answers([limit], moments, cost=cost)
    assert expected_of_key([limit], cost, seen).holds(admitted(seen))


def test_the_range_of_a_bucket_under_steady_traffic_is_narrow() -> None:
    limit = catalogue.Limit(10, 1, BUCKET, burst=40)
    seen = answers([limit], evenly(400, NOON + 0.25, 20))
    expected = expected_of_key([limit], 1, seen)
    assert expected.holds(admitted(seen))
    assert expected.high - expected.low <= 3
    twice = answers([limit], evenly(400, NOON + 0.25, 20), charged=2)
    assert not expected_of_key([limit], 1, twice).holds(admitted(twice))


def test_midnight_between_two_requests_gives_a_second_quota() -> None:
    limit = catalogue.Limit(40, DAY, FIXED)
    seen = answers([limit], evenly(200, NOON + DAY / 2 - 10, 20))
    assert admitted(seen) == 80
    assert expected_of_key([limit], 1, seen) == Range(40, 80)


def test_a_sliding_window_lets_in_what_has_slid_out_since_the_edge() -> None:
    limit = catalogue.Limit(60, 60, SLIDING)
    seen = answers([limit], evenly(200, NOON - 10, 20))
    expected = expected_of_key([limit], 1, seen)
    assert admitted(seen) == 69
    assert expected.low == 60
    assert expected.high in (69, 70)


def test_a_request_that_only_another_rule_rejected_is_as_if_it_had_never_come() -> None:
    limit = catalogue.Limit(40, DAY, FIXED)
    elsewhere = [Seen(NOON, NOON + 0.01, admitted=False, rejected_here=False)] * 100
    few = [Seen(NOON, NOON + 0.01, admitted=True, rejected_here=False)] * 30
    assert expected_of_key([limit], 1, [*elsewhere, *few]) == Range(30, 30)
    assert expected_of_key([limit], 1, elsewhere) == Range(0, 0)


def whole_traffic(*, reject_after: dict[str, int]) -> Iterator[Answer]:
    """An answer for every request of the scenario; each rule named admits so many, the others everything."""
    left = dict(reject_after)
    for stream in STREAMS:
        for caller in stream.callers * stream.count:
            met = [rule.slug for rule in stream.rules_for(caller) if rule.mode == "enforce"]
            rejecting = frozenset(slug for slug in met if left.get(slug) == 0)
            for slug in met if not rejecting else ():
                left[slug] = left.get(slug, 10**9) - 1
            yield Answer(stream, caller, NOON, NOON + 0.01, 429 if rejecting else 200, rejecting)


def test_the_scenario_meets_every_rule_and_tier_of_the_catalogue() -> None:
    rows = traffic_rows(list(whole_traffic(reject_after={})))
    met = {(row.rule.slug, row.tier) for row in rows}
    assert {slug for slug, _ in met} == {rule.slug for rule in catalogue.RULES}
    assert {tier for _, tier in met} >= {tier.slug for tier in catalogue.TIERS}
    for rule in catalogue.RULES:
        assert {tier for tier in rule.limits if tier} <= {tier for slug, tier in met if slug == rule.slug}


def test_one_counter_for_the_whole_site_is_one_row_and_one_usage_row_for_each_tier() -> None:
    seen = list(whole_traffic(reject_after={"reports-whole-site": 100}))
    [row] = [row for row in traffic_rows(seen) if row.rule.slug == "reports-whole-site"]
    assert (row.tier, row.sent, row.admitted, row.rejected, row.agrees) == (None, 160, 100, 60, True)
    usage = [row for row in usage_rows(seen) if row.rule.slug == "reports-whole-site"]
    assert [row.tier for row in usage] == [tier.slug for tier in catalogue.TIERS]
    assert sum(row.total for row in usage) == 160
    assert sum(row.rejected for row in usage) == 60


def test_usage_of_a_shadow_rule_follows_from_the_rule_and_an_unlimited_tier_has_none() -> None:
    usage = {(row.rule.slug, row.tier): row for row in usage_rows(list(whole_traffic(reject_after={})))}
    shadow = usage["orders-trial-run", "enterprise"]
    assert (shadow.total, shadow.allowed, shadow.rejected, shadow.shadow_rejected) == (150, 100, 0, 50)
    assert ("orders-per-key", "enterprise") not in usage


def test_two_keys_that_err_in_opposite_directions_do_not_agree() -> None:
    one, other = (Caller("free", "192.0.2.1", api_key=key) for key in ("key-free-1", "key-free-2"))
    stream = Stream("/orders/", (one, other), 80)
    seen = [Answer(stream, one, NOON, NOON, 200)] * 50 + [Answer(stream, other, NOON, NOON, 200)] * 30
    rejected = frozenset({"orders-per-key"})
    seen += [Answer(stream, caller, NOON, NOON, 429, rejected) for caller in (one, other) for _ in range(30)]
    [row] = traffic_rows(seen)
    assert row.expected.holds(row.admitted)
    assert not row.agrees


class _Rejecting(BaseHTTPRequestHandler):
    """Answers GET as the plain views do, with a problem document, and POST as DRF does, with the field alone."""

    def do_GET(self) -> None:
        self._reject(b'{"status": 429, "violated-policies": ["export-paced-and-capped-86400"]}', "")

    def do_POST(self) -> None:
        field = '"reports-whole-site";r=4;t=9,"export-paced-and-capped-1";r=3;t=0'
        self._reject(b'{"detail": "Request was throttled."}', field)

    def _reject(self, body: bytes, field: str) -> None:
        self.send_response(429)
        for name, value in (("Content-Length", str(len(body))), ("X-Process-ID", "7"), ("RateLimit", field)):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Rejecting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_rejection_is_laid_to_the_rules_that_the_answer_names(refusing_port: int) -> None:
    paula = Caller("pro", "192.0.2.1", user="paula")
    for stream, expected in (
        (Stream("/api/export/", (paula,), 1), {"export-paced-and-capped"}),
        (Stream("/api/reports/", (paula,), 1, method="POST"), {"reports-whole-site"}),
    ):
        connection = Connection(refusing_port)
        answer = connection.send(stream, paula)
        connection.close()
        assert (answer.status, answer.process, answer.error) == (429, 7, "")
        assert answer.rejected_by == expected


def test_a_rejection_by_a_rule_that_the_request_does_not_meet_is_an_error(refusing_port: int) -> None:
    stream = Stream("/orders/", (Caller("pro", "192.0.2.1", api_key="key-pro"),), 1)
    connection = Connection(refusing_port)
    answer = connection.send(stream, stream.callers[0])
    connection.close()
    assert not answer.rejected_by
    assert "names no rule" in answer.error


def left(suggestion: Suggestion) -> int:
    """How much of its tightest limit the traffic leaves; what a bucket has refilled within a minute counts."""
    least = 1_000_000
    stream = Stream(suggestion.path, (suggestion.caller,), 1)
    for rule in stream.rules_for(suggestion.caller):
        key = suggestion.caller.partition(rule)
        sent = sum(
            other.count
            for other in STREAMS
            for caller in other.callers
            if rule in other.rules_for(caller) and caller.partition(rule) == key
        )
        for limit in rule.limits_for(suggestion.caller.tier):
            refilled = limit.algorithm == BUCKET and limit.quota * 60 / limit.window >= (limit.burst or limit.quota)
            least = min(least, limit.quota - (0 if refilled else sent * rule.cost))
    return least


def test_what_the_demo_suggests_is_answered_as_it_says() -> None:
    assert [suggestion.allowed for suggestion in SUGGESTIONS] == [left(suggestion) > 0 for suggestion in SUGGESTIONS]
    assert SUGGESTIONS[0].allowed
    assert SUGGESTIONS[2].command("http://here") == "curl -i -H 'X-API-Key: key-free-2' http://here/orders/"
    assert SUGGESTIONS[0].command("http://here") == "curl -i http://here/orders/"


@pytest.mark.once
def test_the_example_speaks_the_language_of_the_client(tmp_path: Path) -> None:
    ask = """
import django
django.setup()
from django.core.management import call_command
from django.test import Client
call_command("migrate", verbosity=0)
call_command("demo_data", verbosity=0)
headers = {"Accept": "text/html", "Accept-Language": "de", "Host": "localhost"}
responses = [Client(headers=headers).get("/orders/") for _ in range(11)]
assert responses[-1].status_code == 429
assert "Zu viele Anfragen" in responses[-1].text
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_URL", "DEMO_BREAK")}
    environment |= {"DJANGO_SETTINGS_MODULE": "example_project.settings", "EXAMPLE_STATE_DIR": str(tmp_path)}
    done = subprocess.run((sys.executable, "-c", ask), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
