"""Files of access logs, plain or compressed, and the progress of reading them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from functools import partial
from importlib import import_module
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any, Final

from ...values.bounds import MAX_TEXT
from .formats import UNREADABLE, AccessLogLine, LogFormat, Parse, Wanted, WrongFormat, find_format
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


class LogFiles:
    """The lines of some logs, file by file.

    names: paths; "-" = standard input. zone: of times without one. Unreadable lines are counted, and the first of them
    are in `shown`. Raises WrongFormat, OSError.
    """

    def __init__(self, names: Sequence[str], wanted: Wanted, zone: tzinfo) -> None:
        self.names, self.wanted = list(names), wanted
        #: Lines of each file that were read, and that cannot be read.
        self.read, self.unread = [0] * len(names), [0] * len(names)
        self.shown: list[tuple[str, int, str, str]] = []
        self._raw: list[Any] = []
        self._texts: list[io.TextIOWrapper] = []
        try:
            self._open(zone)
        except BaseException:
            self.__exit__()
            raise

    def _open(self, zone: tzinfo) -> None:
        self._sizes: list[int] = []
        self._times: list[TimeReader] = []
        for name in self.names:
            self._raw.append(sys.stdin.buffer if name == STDIN else Path(name).open("rb"))  # noqa: SIM115
            with _damage_named(name, self._raw[-1]):
                self._texts.append(_text_of(_unpacked(self._raw[-1], name), name))
            about = None if name == STDIN else os.fstat(self._raw[-1].fileno())
            self._sizes.append(about.st_size if about else 0)
            self._times.append(TimeReader(zone, about.st_mtime_ns // 1_000 if about else None))
        self.total_bytes = sum(self._sizes) if all(self._sizes) else 0
        self._cut = [_cut_lines(text, name) for text, name in zip(self._texts, self.names, strict=True)]
        self._firsts = [self._first_lines(file) for file in range(len(self.names))]
        self._formats: list[LogFormat | None] = []
        for (_blank, lines), time_of in zip(self._firsts, self._times, strict=True):
            some = [line for line in lines if line.strip() and line[0] != "#"]
            self._formats.append(find_format(self.wanted, some, time_of) if some else None)
            time_of.restart()
        self.formats = [each for each in self._formats if each is not None]
        if not self.formats:
            raise WrongFormat(f"There are no lines in {', '.join(self.names)}.")

    def __enter__(self) -> LogFiles:
        return self

    def __exit__(self, *_error: object) -> None:
        for name, *streams in zip_longest(self.names, self._texts, self._raw):
            for stream in filter(None, streams) if name != STDIN else ():
                stream.close()  # a decompressing stream does not close the file

    def is_empty(self, file: int) -> bool:
        """Return whether a file has no lines."""
        return self._formats[file] is None

    def has_fractions(self, file: int) -> bool:
        """Return whether the times of a file are finer than seconds."""
        return self._times[file].has_fractions

    @property
    def times_lack(self) -> set[str]:
        """What times that were read lack, see `TimeReader`."""
        return set().union(*(each.lacks for each in self._times))

    def bytes_read(self) -> int:
        """Return how many bytes of the files, as stored, were read."""
        return sum(
            os.lseek(raw.fileno(), 0, os.SEEK_CUR) for raw, size in zip(self._raw, self._sizes, strict=True) if size
        )

    def __iter__(self) -> Iterator[AccessLogLine]:
        for file, found in enumerate(self._formats):
            if found is not None:
                yield from self._lines(file, found.parse)

    def _lines(self, file: int, parse: Parse) -> Iterator[AccessLogLine]:
        number, first = self._firsts[file]
        with _damage_named(self.names[file], self._raw[file]):
            for text in chain(first, self._cut[file]):
                number += 1
                try:
                    if len(text) == MAX_TEXT:
                        raise ValueError(f"is longer than {MAX_TEXT:,} characters")
                    line = parse(text, number, file)
                except UNREADABLE as error:
                    if text.strip() and text[0] != "#":  # W3C logs have comments
                        self._note(file, number, error, text)
                    continue
                self.read[file] += 1
                yield line

    def _note(self, file: int, number: int, error: Exception, text: str) -> None:
        self.unread[file] += 1
        if len(self.shown) < MAX_SHOWN:
            why = f"has no field {error}" if isinstance(error, KeyError) else str(error)
            self.shown.append((self.names[file], number, why, text.rstrip("\r\n")[:120]))

    def _first_lines(self, file: int) -> tuple[int, list[str]]:
        """Return the number of empty lines at the beginning, and the lines after them that decide the format."""
        lines = self._cut[file]
        with _damage_named(self.names[file], self._raw[file]):
            for number, line in enumerate(lines):
                if line.strip():
                    return number, [line, *islice(lines, _FIRST - 1)]
        return 0, []


def _unpacked(raw: Any, name: str) -> Any:
    """Return a stream of the content of a file."""
    magic = raw.peek(6)[:6] if hasattr(raw, "peek") else b""
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if magic.startswith(b"BZh"):
        return io.BufferedReader(_Unpacked(raw, bz2.BZ2Decompressor))
    if magic.startswith(b"\xfd7zXZ\0"):
        return io.BufferedReader(_Unpacked(raw, partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY)))
    if magic.startswith(b"PK\x03\x04"):
        return _zipped(raw, name)
    return _zstd(raw) if magic.startswith(b"\x28\xb5\x2f\xfd") else raw


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


def _zipped(raw: IO[bytes], name: str) -> Any:
    """Return a stream of the only file in a ZIP archive."""
    if not raw.seekable():
        raise WrongFormat(f"{name} is a ZIP archive, which cannot be read from a pipe: send it through `funzip`.")
    archive = zipfile.ZipFile(raw)
    inner = [each for each in archive.infolist() if not (each.is_dir() or each.filename.startswith("__MACOSX/"))]
    if len(inner) != 1:
        raise WrongFormat(f"{name} is a ZIP archive of {len(inner)} files. Unpack it, and name the logs.")
    return archive.open(inner[0])


def _text_of(stream: Any, name: str) -> io.TextIOWrapper:
    """Return a stream of text. Raises WrongFormat for an archive.

    Its lines end with a line feed, so that no other character divides a line.
    """
    begin = stream.peek(512)[:512] if hasattr(stream, "peek") else b""
    if begin[257:262] == b"ustar":
        raise WrongFormat(f"{name} is a tar archive. Unpack it, and name the logs.")
    encoding = "utf-16" if begin[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return io.TextIOWrapper(stream, encoding, "backslashreplace", newline="\n")


def _zstd(raw: IO[bytes]) -> Any:
    """Return a stream of the content of a zstd file, with an installed library.

    Not with zstandard: it ends without an error if a file is truncated, and after the first of several frames.
    """
    for module in ("compression.zstd", "backports.zstd", "pyzstd"):
        try:
            return import_module(module).ZstdFile(raw, "rb")
        except ImportError:
            continue
    raise WrongFormat(
        "This log is compressed with zstd. Install backports.zstd, or send it through `zstdcat LOG | … -`."
    )


@contextmanager
def _damage_named(name: str, raw: Any) -> Iterator[None]:
    """Raise WrongFormat if a compressed file is truncated or damaged, or followed by other bytes."""
    try:
        yield
    except Exception as error:
        known = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError)
        is_bz2 = isinstance(error, OSError) and error.errno is None
        if not (is_bz2 or isinstance(error, known) or type(error).__name__ == "ZstdError"):
            raise
        at = f" before byte {raw.tell():,}" if name != STDIN else ""
        raise WrongFormat(f"{name} is cut off or damaged{at}: {error}") from error


def _cut_lines(text: Any, name: str) -> Iterator[str]:
    """Yield the lines of a log. Of one that is longer than MAX_TEXT, only the beginning is kept in memory.

    NUL bytes before a line are left out: a log that is truncated while a server writes it begins with many. Raises
    WrongFormat after MAX_EMPTY empty lines.
    """
    empty = 0
    while line := text.readline(MAX_TEXT):
        if line[0] == "\0":
            line = _after_nuls(line, text)
        if len(line) < 3:
            empty += 1
            if empty > MAX_EMPTY:
                raise WrongFormat(f"{name} is no access log: it has more than {MAX_EMPTY:,} empty lines.")
        yield line
        while len(line) == MAX_TEXT and line[-1] != "\n":
            line = text.readline(MAX_TEXT)


def _after_nuls(line: str, text: Any) -> str:
    while line and not (line := line.lstrip("\0")):
        line = text.readline(MAX_TEXT)
    return line if line[-1:] == "\n" else line + text.readline(MAX_TEXT - len(line))
