"""Lines of access logs in all formats, the files that they come from, and times: understood wholly or not at all."""

from __future__ import annotations

import gzip
import io
import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.forecast.logs.formats import Wanted, WrongFormat, find_format
from django_ratelimiter.forecast.logs.reading import LogFiles
from django_ratelimiter.forecast.logs.times import TimeReader

AT = 1_792_951_200_000_000 + 5_000_000  # 2026-10-25 18:00:05 UTC
COMMON = '203.0.113.9 - ann [25/Oct/2026:20:00:05 +0200] "GET /items/1/?page=2 HTTP/1.1" 200 512'
NGINX = (
    '{"time_local": "25/Oct/2026:18:00:05 +0000", "remote_addr": "203.0.113.9", "remote_user": "ann",'
    ' "request": "GET /items/1/?page=2 HTTP/1.1", "status": "200", "request_time": "0.250",'
    ' "http_x_org": "acme", "http_user_agent": "a \\"quoted\\" agent"}'
)
GUNICORN = (
    '{"h": "203.0.113.9", "u": "ann", "t": "[25/Oct/2026:18:00:05 +0000]", "m": "GET", "U": "/items/1/",'
    ' "q": "page=2", "s": 200, "D": 250000, "http_x_org": "acme"}'
)
OWN = (
    r"(?P<time>\S+) (?P<address>\S+) (?P<user>\S+) (?P<method>[A-Z]+) (?P<path>\S+) (?P<status>\d+) "
    r"(?P<duration_ms>\S+) (?P<http_x_org>\S*)"
)
OWN_LINE = "2026-10-25T18:00:05Z 203.0.113.9 ann GET /items/1/?page=2 200 250 acme"


@pytest.mark.parametrize(
    "text",
    ["GET /x HTTP/1.1", "GET /x", "GET /x HTTP/2.0", "GET /x?a=b&c=d HTTP/1.1", 'GET /x?q=\\"tea\\" HTTP/1.1'],
)
def test_the_path_is_what_stands_before_protocol_and_query(text: str) -> None:
    line = f'203.0.113.9 - - [25/Oct/2026:18:00:05 +0000] "{text}" 200 512 "-" "-"'
    assert find_format(Wanted(), [line], TimeReader(UTC)).parse(line, 0).path == "/x"


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kathmandu")])
@pytest.mark.parametrize("offset", ["", " +0000", " -0330"])
def test_each_second_of_a_remembered_minute_is_exact(zone: tzinfo, offset: str) -> None:
    read = TimeReader(zone)
    for minute in ("25/Oct/2026:04:59", "25/Oct/2026:05:00", "25/Oct/2026:04:59"):
        for second in (7, 59, 0):
            text = f"{minute}:{second:02}{offset}"
            assert read(text) == TimeReader(zone)(text)
            assert read(text) - read(f"{minute}:00{offset}") == second * 1_000_000


@pytest.mark.parametrize(
    "line",
    [
        COMMON.replace("203.0.113.9", "203.0.113.8,"),
        NGINX.replace("203.0.113.9", "203.0.113.8, unknown"),
        NGINX.replace("203.0.113.9", "host.example"),
    ],
)
def test_a_word_in_the_place_of_the_address_is_unreadable(line: str) -> None:
    """Else the rules by address would reject nobody."""
    with pytest.raises(ValueError, match=r"has no address in|is not in the format"):
        find_format(Wanted(), [line], TimeReader(UTC)).parse(line, 0)


def test_lines_that_cannot_be_read_are_counted_and_the_first_ten_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join([COMMON, *["\\x16\\x03\\x01"] * 12, "", COMMON]) + "\n")
    files = LogFiles([str(log)], Wanted(), UTC)
    assert len([*files]) == 2
    assert files.files[0].unread == 12
    assert [number for _, number, _, _ in files.shown] == list(range(2, 12))


def test_a_field_that_a_line_lacks_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(NGINX + "\n" + '{"status": 200}\n[1]\n')
    files = LogFiles([str(log)], Wanted(), UTC)
    assert len([*files]) == 1
    assert [why for _, _, why, _ in files.shown] == ["has no field 'request'", "is not a JSON object"]


def test_several_files_are_read_one_after_the_other_and_compressed_ones_too(tmp_path: Path) -> None:
    for name, seconds in (("a", (5, 9)), ("b.gz", (7, 8)), ("c", (1, 2))):
        text = "".join(COMMON.replace(":05 ", f":{second:02} ") + "\n" for second in seconds).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    (tmp_path / "empty").write_text("")
    names = [str(tmp_path / name) for name in ("a", "b.gz", "c", "empty")]
    files = LogFiles(names, Wanted(), UTC)
    found = [*files]
    assert [(line.time_us - AT) // 1_000_000 + 5 for line in found] == [5, 9, 7, 8, 1, 2]
    assert [line.file for line in found] == [0, 0, 1, 1, 2, 2]
    assert [each.format for each in files.files] == ["combined"] * 3 + [""]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read(pack: type[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(pack(COMMON.encode()))))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", stream)
    files = LogFiles(["-"], Wanted(), UTC)
    assert len([*files]) == 1
    assert files.total_bytes == 0


@pytest.mark.parametrize(
    ("name", "text", "more", "said"),
    [
        ("(?P<time>", COMMON, (), "not a valid regular expression"),
        ("nginx", COMMON, (), r"There is no format 'nginx'\. Formats are auto, common, combined, json\."),
        ("own", COMMON, (), "There is no format 'own'"),
        (r"\S+ (\S+)", COMMON, (), "needs named groups"),
        ("json", '{"a": {}}', (), "time. Name it: --field time=NAME. The fields are: none."),
        (r"(?P<method>\S+) (?P<path>\S+)", COMMON, (), "time"),
        (r"(?P<time>\S+) (?P<method>\S+)", COMMON, (), "request"),
        (OWN, OWN_LINE, ("http_x_key",), "http_x_key"),
        ("combined", COMMON, ("http_x_key",), "--format"),
        ("json", COMMON, (), "not JSON"),
    ],
)
def test_a_wrong_format_is_named(name: str, text: str, more: tuple[str, ...], said: str) -> None:
    with pytest.raises(WrongFormat, match=said):
        find_format(Wanted(name, dict.fromkeys(more, "x")), [text], TimeReader(UTC))


EVENING = datetime(2026, 11, 22, 18, 0, 5, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("22/Nov/2026:18:00:05.123456 +0000", 123_456),
        ("22/Nov/2026:18:00:05.123456789 +0000", 123_456),
        ("22/Nov/2026:18:00:05,5 +0000", 500_000),
        ("22/Nov/2026:18:00:05.123", 123_000),  # HAProxy
        ("22/Nov/2026:20:00:05+0200", 0),
        ("22/Nov/2026:18:00:05 GMT", 0),
        ("22/Nov/2026 18:00:05", 0),  # Django's own server
        ("2026-11-22T18:00:05.123456789Z", 123_456),
        ("2026-11-22 20:00:05 +0200", 0),
        ("2026/11/22 18:00:05", 0),
        ("2026-11-22T12:30:05.25-05:30", 250_000),
        ("Sun Nov 22 18:00:05 2026", 0),
        ("Sun Nov 22 18:00:05 UTC 2026", 0),
        ("Sun, 22 Nov 2026 18:00:05 GMT", 0),
        ("1795370405.123", 123_000),  # Apache's %{sec}t.%{msec_frac}t
        ("2026-11-22 18:00:05,250", 250_000),
        ("1795370405", 0),
        ("1795370405000", 0),
        ("1795370405000000", 0),
        ("1795370405000000999", 0),
    ],
)
def test_every_shape_is_read_exactly(text: str, micros: int) -> None:
    read = TimeReader(UTC)
    assert read(text) == read(text) == us(EVENING) + micros
    assert TimeReader(UTC)(f"[{text}]") == us(EVENING) + micros


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-22",
        "20261122T180005",
        "2026-11-22T18:00",
        "2026-11-22T18:00:05+02",
        "2026-11-22T18:00:05+9900",
        "2026-11-22T18:00:60Z",
        "2026-11-22T24:00:00Z",
        "2026-11/22 18:00:05",
        "22/Nov/2026:18:00:05 +0000 x",
        "22/nov/2026:18:00:05 +0000",
        "31/Feb/2026:18:00:05 +0000",
        "22/Nov/2026:18:00:5 +0000",
        "22/Nov/2026:18:00:05.1234567890 +0000",
        "22/Nov/2026:18:00:05 PST",
        "22/Nov/2026:18:00:05.+0000",
        "Nov 22 18:00:05",
        "1.79E9",
        "-5",
        "\uff12\uff12/Nov/2026:18:00:05 +0000",
    ],
)
def test_what_is_not_understood_completely_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="has no time in"):
        TimeReader(UTC)(text)


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2150, 1, 1)),  # noqa: DTZ001
    st.integers(-14 * 4, 14 * 4).map(lambda quarters: timezone(timedelta(minutes=15 * quarters))),
    st.sampled_from(
        [
            "%d/%b/%Y:%H:%M:%S.%f %z",
            "%Y-%m-%dT%H:%M:%S.%f%z",
            "%a %b %d %H:%M:%S.%f %z %Y",
            "%a, %d %b %Y %H:%M:%S.%f %z",
        ]
    ),
)
def test_a_time_that_is_written_is_read_again(moment: datetime, zone: timezone, shape: str) -> None:
    moment = moment.replace(tzinfo=zone)
    year = f"{moment.year:04}"
    assert TimeReader(UTC)(moment.strftime(shape.replace("%Y", year))) == us(moment)


@pytest.mark.parametrize(("texts", "has_fractions"), [
    (["22/Nov/2026:18:00:05"] * 3, False),
    (["22/Nov/2026:18:00:05.000"] * 3, False),
    (["1795370405.123", "1795370405.000", "1795370406.2"], True),
    (["1795370405123", "1795370405000"], True),
])  # fmt: skip
def test_times_say_whether_they_have_fractions(texts: list[str], has_fractions: bool) -> None:
    read = TimeReader(UTC)
    for text in texts * 2:
        read(text)
    assert read.has_fractions is has_fractions


def test_times_of_a_file_have_one_unit() -> None:
    for first, other in (("1795370405", "1795370405123"), ("1795370405123", "1795370405.5"), ("1" * 16, "1" * 19)):
        read = TimeReader(UTC)
        read(first)
        with pytest.raises(ValueError, match="in another unit"):
            read(other)
        read("2026-11-22T18:00:05Z")


def test_times_without_a_zone_are_those_of_the_zone() -> None:
    read = TimeReader(BERLIN)
    assert read("22/Nov/2026:19:00:05") == us(EVENING)
    assert read.lacks_zones
    read = TimeReader(BERLIN)
    assert read("22/Nov/2026:18:00:05 +0000") == us(EVENING)
    assert not read.lacks_zones


@pytest.mark.parametrize("shape", ["25/Oct/2026:{}:00", "2026-10-25 {}:00", "Sun Oct 25 {}:00 2026"])
def test_the_hour_that_comes_twice_is_ordered_by_the_file(shape: str) -> None:
    read = TimeReader(BERLIN)
    clocks = ["01:58", "02:00", "02:30", "02:29", "02:59", "02:00", "02:01", "02:00", "02:31", "02:59", "03:00"]
    minutes = [
        (read(shape.format(clock)) - us(datetime(2026, 10, 24, 23, 58, tzinfo=UTC))) // 60_000_000 for clock in clocks
    ]
    assert minutes == [0, 2, 32, 31, 61, 62, 63, 62, 93, 121, 122]


@pytest.mark.parametrize("text", ["29/Mar/2026:02:30:00", "2026-03-29 02:00:00"])
def test_an_hour_that_does_not_exist_is_no_time(text: str) -> None:
    """The log is of another zone."""
    with pytest.raises(ValueError, match="has no time in"):
        TimeReader(BERLIN)(text)
