"""Files of access logs, plain or compressed, and the progress of reading them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Final

from ...values.bounds import MAX_TEXT
from .formats import UNREADABLE, AccessLogLine, Wanted, WrongFormat, find_format
from .times import TimeReader

STDIN: Final = "-"

#: Maximum number of unreadable lines that are shown.
MAX_SHOWN: Final = 10

#: Lines at the beginning of a file that decide its format.
_FIRST: Final = 100

#: Maximum number of empty lines of a file. With more, it is no log, but could take hours to unpack.
MAX_EMPTY: Final = 1_000_000

#: Maximum memory in bytes to unpack an xz file: `xz -9` needs 65 MB, others may ask for 4 GB.
_XZ_MEMORY: Final = 100_000_000


@dataclass
class LogFile:
    """A log. format: its name; empty = the file has no lines. read, unread: lines that were read, and cannot be."""

    name: str
    times: TimeReader
    size: int
    format: str = ""
    read: int = 0
    unread: int = 0


class LogFiles:
    """The lines of some logs, file by file.

    names: paths; "-" = standard input. zone: of times without one. Unreadable lines are counted, and the first of them
    are in `shown`, each with the name of its file, its number and the reason. Raises OSError, and WrongFormat later.
    """

    def __init__(self, names: Sequence[str], wanted: Wanted, zone: tzinfo) -> None:
        self.names, self.wanted = list(names), wanted
        sizes = [0 if name == STDIN else Path(name).stat().st_size for name in names]
        self.files = [LogFile(name, TimeReader(zone), size) for name, size in zip(names, sizes, strict=True)]
        self.shown: list[tuple[str, int, str, str]] = []
        self.total_bytes: int = sum(sizes) if all(sizes) else 0
        self._raw: Any = None
        self._bytes_before = 0

    def bytes_read(self) -> int:
        """Return how many bytes of the files, as stored, were read."""
        return self._bytes_before + os.lseek(self._raw.fileno(), 0, os.SEEK_CUR)

    def __iter__(self) -> Iterator[AccessLogLine]:
        for number, file in enumerate(self.files):
            opened = nullcontext(sys.stdin.buffer) if file.name == STDIN else Path(file.name).open("rb")  # noqa: SIM115
            with opened as self._raw, _damage_named(file.name, self._raw):
                stream = _text_of(_unpacked(self._raw, file.name), file.name)
                yield from self._lines(number, file, _cut_lines(stream, file.name))
            self._bytes_before += file.size

    def _lines(self, place: int, file: LogFile, lines: Iterator[str]) -> Iterator[AccessLogLine]:
        numbered = enumerate(lines, 1)
        begin = [*islice((pair for pair in numbered if pair[1].strip()), 1), *islice(numbered, _FIRST - 1)]
        some = [text for _number, text in begin if text.strip() and text[0] != "#"]
        if not some:
            return
        file.format, parse = find_format(self.wanted, some, file.times)
        file.times.restart()
        for number, text in chain(begin, numbered):
            try:
                if len(text) == MAX_TEXT:
                    raise ValueError(f"is longer than {MAX_TEXT:,} characters")
                line = parse(text, place)
            except UNREADABLE as error:
                if text.strip() and text[0] != "#":  # W3C logs have comments
                    file.unread += 1
                    if len(self.shown) < MAX_SHOWN:
                        why = f"has no field {error}" if isinstance(error, KeyError) else str(error)
                        self.shown.append((file.name, number, why, text.rstrip("\r\n")[:120]))
                continue
            file.read += 1
            yield line


def _unpacked(raw: Any, name: str) -> Any:
    """Return a stream of the content of a file."""
    magic = raw.peek(6)[:6] if hasattr(raw, "peek") else b""
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if magic.startswith(b"BZh"):
        return io.BufferedReader(_Unpacked(raw, bz2.BZ2Decompressor))
    if magic.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Unpacked(raw, partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)))
    if magic.startswith((b"PK\x03\x04", b"\x28\xb5\x2f\xfd")):
        program = "funzip" if magic.startswith(b"PK") else "zstd -dc"
        raise WrongFormat(f"{name} is packed: unpack it, or send it through `{program} LOG | … -`.")
    return raw


class _Unpacked(io.RawIOBase):
    """The content of a file of bz2 or xz. The library's own streams ignore what follows the end."""

    def __init__(self, raw: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self._raw, self._new, self._part = raw, decompressor, decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            packed = b""
            if self._part.eof:
                packed = self._part.unused_data.lstrip(b"\0") or self._raw.read(io.DEFAULT_BUFFER_SIZE)
                if not packed:
                    return 0
                self._part = self._new()
            elif self._part.needs_input and not (packed := self._raw.read(io.DEFAULT_BUFFER_SIZE)):
                raise EOFError("the end is missing")
            data = self._part.decompress(packed, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _text_of(stream: Any, name: str) -> io.TextIOWrapper:
    """Return a stream of text. Raises WrongFormat for an archive.

    Its lines end with a line feed, so that no other character divides a line.
    """
    begin = stream.peek(512)[:512] if hasattr(stream, "peek") else b""
    if begin[257:262] == b"ustar":
        raise WrongFormat(f"{name} is a tar archive. Unpack it, and name the logs.")
    encoding = "utf-16" if begin[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return io.TextIOWrapper(stream, encoding, "backslashreplace", newline="\n")


@contextmanager
def _damage_named(name: str, raw: Any) -> Iterator[None]:
    """Raise WrongFormat if a compressed file is truncated or damaged, or followed by other bytes."""
    try:
        yield
    except Exception as error:
        has_no_number = isinstance(error, OSError) and error.errno is None  # of gzip and bz2, not of the system
        if not (has_no_number or isinstance(error, EOFError | zlib.error | lzma.LZMAError)):
            raise
        at = f" before byte {raw.tell():,}" if name != STDIN else ""
        raise WrongFormat(f"{name} is cut off or damaged{at}: {error}") from error


def _cut_lines(text: Any, name: str) -> Iterator[str]:
    """Yield the lines of a log. Of one that is longer than MAX_TEXT, only the beginning is kept in memory.

    Raises WrongFormat after MAX_EMPTY empty lines.
    """
    empty = 0
    while line := text.readline(MAX_TEXT):
        if len(line) < 3:
            empty += 1
            if empty > MAX_EMPTY:
                raise WrongFormat(f"{name} is no access log: it has more than {MAX_EMPTY:,} empty lines.")
        yield line
        while len(line) == MAX_TEXT and line[-1] != "\n":
            line = text.readline(MAX_TEXT)
