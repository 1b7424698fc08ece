"""A replay of very many callers: what one takes, to keep and to make."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import pytest

from django_ratelimiter.forecast import callers
from django_ratelimiter.forecast.callers import LoggedCallers
from django_ratelimiter.forecast.logs.line import AccessLogLine
from django_ratelimiter.forecast.replay import Replay
from django_ratelimiter.forecast.targets import LoggedTarget, PassedDoor
from django_ratelimiter.rules.records import Facts
from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet
from django_ratelimiter.testing.builders import build_record

pytestmark = pytest.mark.django_db

#: The most bytes that a remembered caller takes, and calls that it takes to decide a line by three rules.
MAX_BYTES, MAX_CALLS_OF_KNOWN, MAX_CALLS_OF_NEW = 450, 7, 15

RATES = ("10/minute", "200/hour", "1000/day")
RULES = RuleSet(
    NO_VERSION,
    (),
    [build_record({"slug": f"rule{n}", "limits": [rate], "partition_by": ["ip"]}) for n, rate in enumerate(RATES)],
)


def test_a_caller_takes_little_memory() -> None:
    found = LoggedCallers([RULES], [])
    found.find(_line(0))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, 10_001):
            found.find(_line(number))
        assert (tracemalloc.get_traced_memory()[0] - before) / 10_000 < MAX_BYTES
    finally:
        tracemalloc.stop()


def test_a_line_takes_few_calls_and_a_new_caller_hardly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found, replay = LoggedCallers([RULES], []), Replay(RULES)
    target = LoggedTarget(Facts("GET", "/", "", "", ""), "view", {}, None, (PassedDoor("", False),))  # type: ignore[arg-type]
    for known in (True, False):
        if not known:
            monkeypatch.setattr(callers, "MAX_CALLERS", 0)
        calls = 0

        def note(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal calls
            calls += event == "call"

        for number in (1, 1, 1) if known else (2, 3, 4):
            line = _line(number)
            calls = 0
            sys.setprofile(note)
            try:
                replay.decide(line, target, found.find(line))
            finally:
                sys.setprofile(None)
        assert calls <= (MAX_CALLS_OF_KNOWN if known else MAX_CALLS_OF_NEW), calls


def _line(number: int) -> AccessLogLine:
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return AccessLogLine(1_760_000_000_000_000, "GET", "/", address)
