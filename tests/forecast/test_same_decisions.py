"""A replay decides as the same requests are decided when they are sent for real, with a frozen clock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from django_ratelimiter import backend
from django_ratelimiter.engine import MemoryEngine
from django_ratelimiter.forecast.logs import callers
from django_ratelimiter.forecast.logs.callers import MAX_CALLERS
from django_ratelimiter.forecast.logs.comparison import Options, compare
from django_ratelimiter.forecast.logs.formats import Wanted
from django_ratelimiter.forecast.logs.line import AccessLogLine
from django_ratelimiter.forecast.logs.reading import LogFiles
from django_ratelimiter.forecast.logs.replay import Replay
from django_ratelimiter.forecast.logs.rule_sets import in_force
from django_ratelimiter.limiter import io

from . import trace

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.urls("tests.forecast.views")]

#: 20,000 were compared when this was written.
REQUESTS = int(os.environ.get("REPLAY_REQUESTS", "2_000"))

IDENTITIES = {"http_x_api_key": "api_key", "http_x_org": "header:X-Org", "http_host": "host"}


class Clock:
    """Stands still until it is set."""

    now_us = trace.START_US

    def __call__(self) -> int:
        return self.now_us


def test_every_decision_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.MIDDLEWARE = [trace.MIDDLEWARE]
    clock = Clock()
    monkeypatch.setattr(backend, "_engine", MemoryEngine(clock))
    monkeypatch.setattr(io, "sleep", lambda _seconds: None)
    trace.make_rules()
    asked = list(trace.trace(REQUESTS))
    sent = trace.send(asked, clock)
    log = str(trace.write_log(asked, tmp_path / "log"))
    for remembered in (MAX_CALLERS, 0):  # 0: each line makes its caller again
        monkeypatch.setattr(callers, "MAX_CALLERS", remembered)
        replayed = _replay(log)
        differing = [
            (number, asked[number - 1], sent[number - 1], replayed.get(number, [True]))
            for number in range(1, REQUESTS + 1)
            if sent[number - 1] != replayed.get(number, [True])
        ]
        assert not differing, differing[:2]
    rejected = sum(not each[0] for each in sent)
    assert 0.05 * REQUESTS < rejected < 0.9 * REQUESTS
    rules = {rule[0] for each in sent for rule in each[3:]}
    assert rules == {rule.slug for rule in in_force().rules} - {"off"}


def _replay(log: str) -> dict[int, list[Any]]:
    """Return what is decided, by the number of the line."""
    replayed: dict[int, list[Any]] = {}

    def note(line: AccessLogLine, replays: Sequence[Replay]) -> None:
        replayed[line.number] = trace.told(replays[0].decision)

    with LogFiles([log], Wanted(identities=IDENTITIES, in_target=("query:page",)), UTC) as files:
        found = compare(files, in_force(), None, Options(), watch=note)
    assert (found.left_out, files.unreadable) == ([], 0)
    return replayed
