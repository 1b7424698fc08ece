"""One odd line, or a damaged file, among lines that can be read: no replay ends with a traceback."""

from __future__ import annotations

import gc
import gzip
import io
import json
import tracemalloc
from datetime import UTC
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from django_ratelimiter.forecast.logs import requests
from django_ratelimiter.forecast.logs.formats import AccessLogLine, Wanted, find_format
from django_ratelimiter.forecast.logs.reading import LogFiles
from django_ratelimiter.forecast.logs.requests import LoggedCallers, target_finder
from django_ratelimiter.forecast.logs.times import TimeReader
from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet
from django_ratelimiter.testing.override import build_record

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]

COMMON = '203.0.113.9 - %s [25/Oct/2026:20:00:05 +0000] "GET /plain/ HTTP/1.1" 200 5'
JSON = {
    "time": "2026-10-25T20:00:05Z", "method": "GET", "path": "/plain/", "user": "ann", "request_time": 0.1
}  # fmt: skip


@pytest.mark.parametrize("first", [b"", b"\n" * 100_000])
def test_a_line_of_any_length_takes_little_memory(tmp_path: Path, first: bytes) -> None:
    fine = COMMON.replace("%s", "ann").encode()
    log = tmp_path / "log"
    log.write_bytes(gzip.compress(first + fine + b"\n" + b"a" * 10_000_000 + b"\n" + fine + b"\n"))
    tracemalloc.start()
    try:
        files = LogFiles([str(log)], Wanted(), UTC)
        assert len([*files]) == 2
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    [(_name, number, why, text)] = files.shown
    assert (number, why) == (len(first) + 2, "is longer than 65,536 characters")
    assert len(text) == 120


def replayed(log: Path, *lines: bytes) -> tuple[int, int]:
    """Replay these lines, and return how many requests were found, and how many lines could not be read."""
    log.write_bytes(b"\n".join(lines) + b"\n")
    out, errors = io.StringIO(), io.StringIO()
    call_command("ratelimit", "replay", str(log), "--json", "--no-progress", stdout=out, stderr=errors)
    out.getvalue().encode()
    found: Any = json.loads(out.getvalue())
    return found["lines"], found["unreadable"]


@pytest.mark.parametrize(
    ("user", "unreadable"),
    [(b"9" * 30, 0), (b"-" + b"9" * 30, 0), (b"9" * 5_000, 0), (b"caf\xe9", 0), (b"nul\0", 0)],
)
def test_odd_names(tmp_path: Path, user: bytes, unreadable: int) -> None:
    fine = (COMMON % "ann").encode()
    assert replayed(tmp_path / "log", fine, fine.replace(b" ann ", b" %b " % user), fine) == (3, unreadable)


@pytest.mark.parametrize(
    ("odd", "unreadable"),
    [
        ({"time": "1969-12-31T23:59:59Z"}, 1),
        ({"time": "9" * 30}, 1),
        ({"time": "0001-01-01T00:00:00+14:00"}, 1),
        ({"method": 5}, 1),
        ({"user": "\ud800"}, 1),
        ({"user": "\U0001f600"}, 0),
        ({"path": "http://[x/plain/"}, 0),
    ],
)
def test_odd_fields(tmp_path: Path, odd: dict[str, Any], unreadable: int) -> None:
    fine = json.dumps(JSON).encode()
    found = replayed(tmp_path / "log", fine, json.dumps(JSON | odd).encode(), fine)
    assert found == (3 - unreadable, unreadable)


@pytest.mark.parametrize(
    ("odd", "unreadable"),
    [
        (b"[" * 200_000, 1),
        (b'{"time": ' * 200_000, 1),
        (
            b'{"request_time": 1e999, '
            + json.dumps(JSON | {"status": 200}).replace('"request_time": 0.1, ', "").encode()[1:],
            1,
        ),
        (json.dumps(JSON).encode()[:-1] + b', "status": 1e999}', 1),
    ],
)
def test_odd_json(tmp_path: Path, odd: bytes, unreadable: int) -> None:
    fine = json.dumps(JSON | {"status": 200}).encode()
    assert replayed(tmp_path / "log", fine, odd, fine) == (3 - unreadable, unreadable)


def test_the_users_of_lines_are_known_again_after_they_are_forgotten() -> None:
    for name in ("ann", "bob", "cleo"):
        User.objects.create(username=name)
    found = LoggedCallers([], [RuleSet(NO_VERSION)])
    ann, bob, cleo = (AccessLogLine(0, "GET", "/", "203.0.113.9", name) for name in ("ann", "bob", "cleo"))
    for lines in ([ann, bob], [ann, cleo]):
        found.forget()
        found.read_users(lines)
        assert all(found.find(line).value("user") for line in lines)


def test_callers_who_come_back_are_remembered_and_the_others_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_CALLERS", 8)
    found = LoggedCallers([], [RuleSet(NO_VERSION)])
    first, passing = (found.find(AccessLogLine(0, "GET", "/", f"203.0.113.{number}")) for number in (1, 2))
    for number in range(3, 40):
        found.find(AccessLogLine(0, "GET", "/", f"203.0.113.{number}"))
        assert found.find(AccessLogLine(0, "GET", "/", "203.0.113.1")) is first
    again = found.find(AccessLogLine(0, "GET", "/", "203.0.113.2"))
    assert again is not passing
    assert again.value("ip") == passing.value("ip") == "203.0.113.2"


@pytest.mark.parametrize(("kept", "most"), [(10_000, 7_000_000), (100, 2_000_000)])
def test_callers_take_little_memory_and_forgotten_ones_none_without_garbage_collection(
    monkeypatch: pytest.MonkeyPatch, kept: int, most: int
) -> None:
    monkeypatch.setattr(requests, "MAX_CALLERS", kept)
    found = LoggedCallers([], [RuleSet(NO_VERSION)])
    lines = [AccessLogLine(0, "GET", "/", f"10.0.{number >> 8}.{number & 255}") for number in range(10_000)]
    found.find(lines[0])
    gc.disable()
    tracemalloc.start()
    try:
        for line in lines:
            found.find(line)
        assert tracemalloc.get_traced_memory()[0] < most  # all of them take 4.5 MB
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("text", ["a b c" + " [" * 50_000, 'a b c [1] "GET ' + "/" * 100_000])
def test_a_long_line_takes_no_time(text: str) -> None:
    found = find_format(Wanted("common"), [], TimeReader(UTC))
    began = process_time()
    with pytest.raises(ValueError, match="is not in the format"):
        found.parse(text, 0)
    assert process_time() - began < 2


def test_a_path_with_a_host_that_is_none() -> None:
    assert target_finder([build_record({"slug": "a", "limits": ["1/second"], "view_name": "plain"})])(
        "GET", "http://[x/plain/"
    ).plans
