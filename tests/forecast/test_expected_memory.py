"""The memory of a replay, as it is expected before the replay begins."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from django.core.management import call_command

from django_ratelimiter.forecast.logs.line import AccessLogLine
from django_ratelimiter.forecast.logs.reading import LogFiles
from django_ratelimiter.forecast.memory import blocks, expected
from django_ratelimiter.forecast.memory.blocks import LogBlocks, distinct, read_blocks
from django_ratelimiter.forecast.memory.expected import BYTES_AT_FIRST, BYTES_PER_COUNTER, Expected, expected_memory
from django_ratelimiter.models import Rule, RuleLimit
from django_ratelimiter.rules.ruleset import NO_VERSION, RuleSet
from django_ratelimiter.testing.builders import build_record

pytestmark = pytest.mark.django_db

DAY = 86_400


def write(path: Path, callers: Iterable[int]) -> Path:
    """Write a line of each of these callers, spread over a day."""
    chosen = list(callers)
    with path.open("w") as file:
        for number, caller in enumerate(chosen):
            at = datetime.fromtimestamp(1_760_000_000 + number * DAY // len(chosen), UTC)
            address = f"10.{caller >> 16 & 255}.{caller >> 8 & 255}.{caller & 255}"
            file.write(f'{address} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "GET /plain/ HTTP/1.1" 200 1\n')
    return path


def rules(*rates: str, by: str = "ip") -> RuleSet:
    records = [
        build_record({"slug": f"rule{number}", "limits": [rate], "partition_by": [by]})
        for number, rate in enumerate(rates)
    ]
    return RuleSet(NO_VERSION, (), records)


def expect(path: Path, *rule_sets: RuleSet) -> Expected | None:
    with LogFiles([str(path)], "auto", (), UTC) as files:
        return expected_memory(files, rule_sets, ())


def counters(found: Expected | None) -> float:
    assert found is not None
    return (found.bytes.low - BYTES_AT_FIRST) / BYTES_PER_COUNTER


def small_blocks(monkeypatch: pytest.MonkeyPatch, most: int = 50) -> None:
    monkeypatch.setattr(blocks, "MIN_BLOCKS", most)
    monkeypatch.setattr(blocks, "MAX_BLOCKS", most)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4_096)


def test_a_log_that_is_no_larger_than_the_sample_is_read_whole(tmp_path: Path) -> None:
    found = expect(write(tmp_path / "log", [*range(3_000), *range(2_000)]), rules("10/day", "10/day"))
    assert found is not None
    assert (found.is_exact, found.callers, counters(found)) == (True, (3_000, 3_000), 6_000)


def test_each_line_of_a_small_log_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "log", range(2_000))
    with LogFiles([str(path), str(path)], "auto", (), UTC) as files:
        found = read_blocks(files)
    assert found is not None
    addresses = [line.address for block in found.blocks for line in block]
    assert (len(addresses), len(set(addresses)), found.lines) == (4_000, 2_000, 4_000)


def test_of_a_larger_log_a_bounded_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    path = write(tmp_path / "log", range(20_000))
    with LogFiles([str(path)], "auto", (), UTC) as files:
        found = read_blocks(files)
    assert found is not None
    assert not found.is_whole
    assert sum(map(len, found.blocks)) * 70 < 50 * 4_096 * 1.1
    assert found.lines == pytest.approx(20_000, rel=0.02)
    assert found.seconds == pytest.approx(DAY, rel=0.01)


@pytest.mark.parametrize(("megabytes", "most"), [(3, 32), (40, 61), (1_000, 128)])
def test_the_sample_grows_with_the_log_up_to_a_bound(megabytes: int, most: int, tmp_path: Path) -> None:
    path = write(tmp_path / "log", range(100))
    with LogFiles([str(path)], "auto", (), UTC) as files:
        files.total_bytes = megabytes * 1_000_000
        assert blocks.most_blocks(files) == most


@pytest.mark.parametrize("callers", [500, 5_000])
def test_how_many_callers_a_sample_stands_for(callers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    chance = Random(1)
    found = expect(write(tmp_path / "log", [int(callers * chance.random()) for _ in range(30_000)]), rules("10/day"))
    assert found is not None
    assert found.callers.low == pytest.approx(callers, rel=0.1)
    assert found.callers.low <= found.callers.high < 3 * callers
    assert counters(found) == pytest.approx(found.callers.low, rel=0.01)


def test_callers_who_come_once_are_no_more_than_the_lines() -> None:
    line = AccessLogLine(0, "GET", "/", "192.0.2.1")
    seen = [[(block, number) for number in range(100)] for block in range(10)]
    found = distinct(seen, LogBlocks([[line] * 100] * 10, 50_000, False, 60.0))
    assert found == (50_000, 50_000)
    assert distinct([], LogBlocks([[line]], 50_000, False, 0.0)) == (0, 0)


def test_counters_of_short_windows_are_fewer_than_callers(tmp_path: Path) -> None:
    """Of 6,000 callers, one comes every 14.4 seconds: 250 an hour, and 4 a minute."""
    path = write(tmp_path / "log", range(6_000))
    assert counters(expect(path, rules("10/hour"))) == pytest.approx(250, rel=0.05)
    assert counters(expect(path, rules("10/minute"))) == pytest.approx(4, abs=1)
    assert counters(expect(path, rules("10/day"), rules("9/day", "1/hour"))) == pytest.approx(12_250, rel=0.05)


def test_rules_that_cannot_tell_callers_apart_have_no_counters(tmp_path: Path) -> None:
    assert counters(expect(write(tmp_path / "log", range(100)), rules("10/day", by="user"))) == 0


@pytest.fixture
def saved_rule() -> None:
    rule = Rule.objects.create(slug="all", name="All", path_kind="any", partition_by=["ip"], mode="enforce")
    RuleLimit.objects.create(rule=rule, quota=5, window_seconds=DAY, algorithm="fixed_window")


def replayed(path: Path, *options: str) -> str:
    stderr = io.StringIO()
    call_command("ratelimit", "replay", str(path), *options, stdout=io.StringIO(), stderr=stderr)
    return stderr.getvalue()


@pytest.mark.usefixtures("saved_rule")
def test_it_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log", range(1_200))
    assert "This log holds 1,200 callers; expect about 120 MB of memory.\n" in replayed(path)
    assert "callers;" not in replayed(path, "--memory", "200")
    monkeypatch.setattr(expected, "BYTES_PER_COUNTER", 1_000_000)
    text = replayed(path)
    assert "expect about 1,300 MB of memory. That is more than 300 MB: --memory MB sets a bound." in text
    small_blocks(monkeypatch, most=5)
    assert "This log seems to hold about " in replayed(path)


@pytest.mark.usefixtures("saved_rule")
def test_what_cannot_be_known_is_said_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log", range(100))
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert "is not known in advance" in replayed(packed)
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(path.read_bytes())))
    monkeypatch.setattr("sys.stdin", stdin)
    assert "is not known in advance" in replayed(Path("-"))
