"""Files of logs: in any packing and encoding, or named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_ratelimiter.forecast.logs import reading
from django_ratelimiter.forecast.logs.formats import AccessLogLine, Wanted, WrongFormat
from django_ratelimiter.forecast.logs.reading import LogFiles
from tests.making import make_rule

START = datetime(2026, 11, 22, 18, tzinfo=UTC)


def line(seconds: float, path: str = "/plain/", address: str = "192.0.2.7", rest: str = "") -> str:
    moment = START + timedelta(seconds=seconds)
    return f'{address} - - [{moment:%d/%b/%Y:%H:%M:%S} +0000] "GET {path} HTTP/1.1" 200 12{rest}\n'


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[list[AccessLogLine], LogFiles]]:
    def go(data: bytes, **options: Any) -> tuple[list[AccessLogLine], LogFiles]:
        (tmp_path / "log").write_bytes(data)
        files = LogFiles([str(tmp_path / "log")], Wanted(), UTC, **options)
        return list(files), files

    return go


TWO = (line(0) + line(1)).encode()
MANY = "".join(line(second) for second in range(9)).encode()


@pytest.mark.parametrize(
    "data",
    [
        TWO,
        b"\xef\xbb\xbf" + TWO,
        TWO.decode().encode("utf-16"),
        TWO.replace(b"\n", b"\r\n"),
        line(0, rest=' "-" "a\rb\x0b\x1c\x85c"').encode() + line(1).encode(),
        "".join(line(second, rest=' "-" "a\u2028b"') for second in (0, 1)).encode(),
        TWO[:-1],
        *(pack(each) for pack in (gzip.compress, bz2.compress, lzma.compress) for each in (TWO, b"\xef\xbb\xbf" + TWO)),
        bz2.compress(TWO[: len(TWO) // 2]) + bz2.compress(TWO[len(TWO) // 2 :]),
        lzma.compress(TWO[: len(TWO) // 2]) + lzma.compress(TWO[len(TWO) // 2 :]) + b"\0" * 4,
        gzip.compress(TWO) + b"\0" * 512,
    ],
    ids=map(str, count()),  # packed data holds the time
)
def test_every_packing_and_encoding_is_read(read: Any, data: bytes) -> None:
    found, files = read(data)
    assert [(each.path, each.address) for each in found] == [("/plain/", "192.0.2.7")] * 2
    assert files.files[0].unread == 0


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("damage", ["end", "middle", "after"])
def test_damage_is_named_with_the_file_and_the_place(read: Any, pack: Callable[[bytes], bytes], damage: str) -> None:
    data = pack("".join(line(number % 60, f"/{number * 7919 % 1_000}/") for number in range(3_000)).encode())
    place = len(data) // 2
    damaged = {
        "end": data[:-20],
        "middle": data[:place] + bytes(byte ^ 0xFF for byte in data[place : place + 50]) + data[place + 50 :],
        "after": data + TWO,
    }[damage]
    with pytest.raises(WrongFormat, match=r"log is cut off or damaged before byte [0-9,]+: \w+"):
        read(damaged)


@pytest.mark.parametrize(("begin", "program"), [(b"PK\x03\x04", "funzip"), (b"\x28\xb5\x2f\xfd", "zstd -dc")])
def test_packing_that_is_not_read_is_named_with_what_unpacks_it(read: Any, begin: bytes, program: str) -> None:
    with pytest.raises(WrongFormat, match=rf"log is packed: unpack it, or send it through `{program} LOG \| … -`\."):
        read(begin + TWO)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_a_tar_archive_is_named(read: Any, pack: Callable[[bytes], bytes]) -> None:
    """Else its first line would be lost, and those of the next files' names."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        about = tarfile.TarInfo("access.log")
        about.size = len(TWO)
        archive.addfile(about, io.BytesIO(TWO))
    with pytest.raises(WrongFormat, match=r"log is a tar archive\. Unpack it, and name the logs\."):
        read(pack(packed.getvalue()))


def test_packed_text_takes_little_memory(read: Any) -> None:
    data = line(0).encode() + b"a" * 20_000_000 + b"\n" + line(1).encode()
    for pack in (bz2.compress, lzma.compress):
        packed = pack(data)
        tracemalloc.start()
        try:
            found, files = read(packed)
            assert tracemalloc.get_traced_memory()[1] < 15_000_000  # what the decompressors need themselves
        finally:
            tracemalloc.stop()
        assert (len(found), files.files[0].unread) == (2, 1)


def test_packed_file_that_needs_much_memory_is_refused(read: Any) -> None:
    compressor = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4_096}])
    packed = bytearray(compressor.compress(TWO) + compressor.flush())
    place = packed.index(b"\x21\x01") + 2  # the size of the dictionary, as one byte
    packed[place] = 40  # 4 GB
    header = packed[12:24]
    header[8:12] = zlib.crc32(bytes(header[:8])).to_bytes(4, "little")
    packed[12:24] = header
    with pytest.raises(WrongFormat, match="Memory usage limit"):
        read(bytes(packed))


@pytest.mark.parametrize("empty", [b"\n", b"\r\n"])
def test_file_of_empty_lines_ends(read: Any, monkeypatch: pytest.MonkeyPatch, empty: bytes) -> None:
    monkeypatch.setattr(reading, "MAX_EMPTY", 1_000)
    assert len(read(empty * 900 + TWO + empty * 90)[0]) == 2
    for data in (empty * 1_001, TWO + empty * 1_001):
        with pytest.raises(WrongFormat, match="it has more than 1,000 empty lines"):
            read(gzip.compress(data))


@pytest.fixture
def replayed(tmp_path: Path, settings: Any) -> Callable[..., str]:
    settings.MIDDLEWARE = ["django_ratelimiter.middleware.RateLimitMiddleware"]
    make_rule("busy", 1, algorithm="concurrency", partition_by=["ip"])
    make_rule("all", 1_000)

    def go(text: str, *options: str) -> str:
        (tmp_path / "log").write_text(text)
        out = io.StringIO()
        with suppress(CommandError):  # durations are not known
            call_command("ratelimit", "replay", str(tmp_path / "log"), *options, "--no-progress", stdout=out)
        return out.getvalue()

    return go


site = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]


class TestReplay:
    """The command."""

    pytestmark = site

    @pytest.mark.parametrize(("ends", "rejected"), [((10.0, 20.0), 0), ((10.0, 15.0), 1)])
    def test_a_line_is_of_the_end_of_its_request(self, replayed: Any, ends: tuple[float, ...], rejected: int) -> None:
        """Two requests of six seconds, which overlap or do not, as nginx writes $msec and $request_time."""
        text = "".join(
            f'{{"msec": "{START.timestamp() + end}", "remote_addr": "192.0.2.7", "request": "GET /plain/ HTTP/1.1", '
            '"status": "200", "request_time": "6.000"}\n'
            for end in ends
        )
        assert f"Rejected: {rejected} request" in replayed(text)

    def test_the_user_can_say_that_times_are_those_of_the_start(self, replayed: Any) -> None:
        """The second request begins, and ends, within the first."""
        text = "".join(
            f'{{"time": {START.timestamp() + at}, "ip": "192.0.2.7", "request": "GET /plain/", "duration_s": {took}}}\n'
            for at, took in ((0, 9), (5, 1))
        )
        assert "Rejected: 1 request (50 %), 1 caller (100 %)." in replayed(text, "--field", "start=time")
        assert "Rejected: 0 requests (0 %), 0 callers (0 %)." in replayed(text)  # -9 to 0, and 4 to 5

    def test_a_time_zone_can_be_named(self, replayed: Any) -> None:
        text = line(0).replace(" +0000", "")
        assert "2026-11-22 17:00:00 (UTC)" in replayed(text, "--timezone", "Europe/Berlin")
        assert "The log has no time zone; its times are read in that of the project, or of --timezone." in replayed(
            text
        )
        for name in ("Europe/Nowhere", "../etc/passwd"):
            with pytest.raises(CommandError, match="there is no such time zone"):
                call_command("ratelimit", "replay", "-", "--timezone", name)

    def test_what_never_reaches_django_is_counted_apart(self, replayed: Any) -> None:
        calls = ["PRI * HTTP/2.0", "CONNECT x.example:443 HTTP/1.1", "OPTIONS * HTTP/1.1", "GET x.example HTTP/1.1"]
        text = "".join(line(0).replace("GET /plain/ HTTP/1.1", call) for call in calls)
        text += line(0).replace("GET /plain/ HTTP/1.1", "-").replace(" 200 ", " 408 ") + line(0)
        out = replayed(text)
        assert "Traffic: 1 requests that the changed rules match, " in out
        assert "5 lines are of requests that never reach Django: PRI, CONNECT, OPTIONS *, or broken." in out
        assert "cannot be read" not in out
