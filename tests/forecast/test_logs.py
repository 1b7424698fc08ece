"""Lines of access logs, in all formats, and the files that they come from."""

from __future__ import annotations

import gzip
import io
import sys
from datetime import UTC, tzinfo
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from django_ratelimiter.forecast.logs.formats import Wanted, find_format
from django_ratelimiter.forecast.logs.line import AccessLogLine, WrongFormat
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


def lines(files: LogFiles) -> list[AccessLogLine]:
    with files:
        return list(files)


@pytest.mark.parametrize(
    ("name", "text", "holds_more"),
    [
        ("auto", COMMON, False),
        ("combined", COMMON + ' "-" "Mozilla/5.0 (X11)" "198.51.100.1"', False),
        ("auto", NGINX, True),
        ("json", GUNICORN, True),
        (OWN, OWN_LINE, True),
    ],
)
def test_every_format_says_the_same(name: str, text: str, holds_more: bool) -> None:
    found = find_format(Wanted(name, {"http_x_org": "org"} if holds_more else {}), [text], TimeReader(UTC))
    duration, more = (250_000, ("acme",)) if holds_more else (-1, ())
    start_us = AT - 250_000 * holds_more  # these servers write a line at the end of a request
    line = AccessLogLine(start_us, "GET", "/items/1/", "203.0.113.9", "ann", 200, duration, more, 7, 0)
    assert found.parse(text + "\n", 7, 0) == line
    assert found.holds == {"address", "user", "status"} | ({"duration"} if holds_more else set())


@pytest.mark.parametrize(
    "text",
    ["GET /x HTTP/1.1", "GET /x", "GET /x HTTP/2.0", "GET /x?a=b&c=d HTTP/1.1", 'GET /x?q=\\"tea\\" HTTP/1.1'],
)
def test_the_path_is_what_stands_before_protocol_and_query(text: str) -> None:
    line = f'203.0.113.9 - - [25/Oct/2026:18:00:05 +0000] "{text}" 200 512 "-" "-"'
    assert find_format(Wanted(), [line], TimeReader(UTC)).parse(line, 1, 0).path == "/x"


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
        COMMON.replace("203.0.113.9", "host.example"),
        COMMON.replace("203.0.113.9", "shop.example:443"),
        COMMON.replace("203.0.113.9", "203.0.113.8,"),
        NGINX.replace("203.0.113.9", "203.0.113.8, unknown"),
        NGINX.replace("203.0.113.9", "host.example"),
    ],
)
def test_a_word_in_the_place_of_the_address_is_unreadable(line: str) -> None:
    """Else the rules by address would reject nobody."""
    with pytest.raises(ValueError, match=r"has no address in|is not in the format"):
        find_format(Wanted(), [line], TimeReader(UTC)).parse(line, 1, 0)


def test_lines_that_cannot_be_read_are_counted_and_the_first_ten_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join([COMMON, *["\\x16\\x03\\x01"] * 12, "", COMMON]) + "\n")
    files = LogFiles([str(log)], Wanted(), UTC)
    assert [line.number for line in lines(files)] == [1, 15]
    assert files.unreadable == 12
    assert [number for _, number, _, _ in files.shown] == list(range(2, 12))


def test_a_field_that_a_line_lacks_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(NGINX + "\n" + '{"status": 200}\n[1]\n')
    files = LogFiles([str(log)], Wanted(), UTC)
    assert len(lines(files)) == 1
    assert [why for _, _, why, _ in files.shown] == ["has no field 'request'", "is not a JSON object"]


def test_several_files_are_read_by_time_and_compressed_ones_too(tmp_path: Path) -> None:
    for name, seconds in (("a", (5, 9)), ("b.gz", (7, 8)), ("c", (1, 2))):
        text = "".join(COMMON.replace(":05 ", f":{second:02} ") + "\n" for second in seconds).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    (tmp_path / "empty").write_text("")
    names = [str(tmp_path / name) for name in ("a", "b.gz", "c", "empty")]
    found = lines(LogFiles(names, Wanted(), UTC))
    assert [(line.time_us - AT) // 1_000_000 + 5 for line in found] == [1, 2, 5, 7, 8, 9]
    assert [line.file for line in found] == [2, 2, 0, 1, 1, 0]


class _ZstdFile(gzip.GzipFile):
    """What reads gzip behind the first bytes of zstd, in place of a library that is not installed."""

    def __init__(self, raw: io.BufferedReader, mode: str) -> None:
        raw.read(4)
        super().__init__(fileobj=raw, mode=mode)


@pytest.mark.parametrize("module", ["compression.zstd", "backports.zstd", "pyzstd"])
def test_zstd_is_read_by_the_library_that_is_there(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compression", "compression.zstd", "backports", "backports.zstd", "pyzstd"):
        monkeypatch.setitem(sys.modules, name, None)
    log = tmp_path / "log.zst"
    log.write_bytes(b"\x28\xb5\x2f\xfd" + gzip.compress(f"{COMMON}\n".encode() * 2))
    with pytest.raises(WrongFormat, match=r"Install backports\.zstd"):
        LogFiles([str(log)], Wanted(), UTC)
    for name in {module.partition(".")[0], module}:
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(ZstdFile=_ZstdFile))  # type: ignore[arg-type]
    assert len(lines(LogFiles([str(log)], Wanted(), UTC))) == 2
    log.write_bytes(log.read_bytes()[:-12])
    with pytest.raises(WrongFormat, match="is cut off or damaged"):
        lines(LogFiles([str(log)], Wanted(), UTC))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read(pack: type[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(pack(COMMON.encode()))))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", stream)
    files = LogFiles(["-"], Wanted(), UTC)
    assert files.total_bytes == files.bytes_read() == 0
    assert len(lines(files)) == 1


@pytest.mark.parametrize(
    ("name", "text", "more", "said"),
    [
        ("(?P<time>", COMMON, (), "not a valid regular expression"),
        ("nginx", COMMON, (), r"There is no format 'nginx'\. Formats are auto, common, combined, w3c, caddy, "),
        ("combine", COMMON, (), "Did you mean combined"),
        ("own", COMMON, (), "There is no format 'own'"),
        ("w3c", COMMON, (), "no #Fields: line"),
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
