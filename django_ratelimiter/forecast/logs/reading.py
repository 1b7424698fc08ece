"""Files of access logs, plain or compressed, and the progress of reading them."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import tzinfo
from heapq import merge
from importlib import import_module
from itertools import chain, repeat, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Final

from ...values.bounds import MAX_TEXT
from .formats import find_format
from .line import AccessLogLine, WrongFormat

STDIN: Final = "-"

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

#: Maximum number of unreadable lines that are shown.
MAX_SHOWN: Final = 10

#: Exceptions for a line that is not a request.
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)

#: Lines that are read before the first decision, to find out what the log contains.
SAMPLED: Final = 5_000


class LogFiles:
    """The lines of some logs, the earliest first; those of one file stay in their order.

    names: paths; "-" = standard input. Unreadable lines are counted in `unreadable`, and the first of them are
    in `shown`. Raises WrongFormat, OSError.
    """

    def __init__(self, names: Sequence[str], format_name: str, more: Sequence[str], zone: tzinfo) -> None:
        self.names = list(names)
        self.read_lines = 0
        self.unreadable = 0
        self.shown: list[tuple[str, int, str, str]] = []
        self._raw: list[Any] = []
        self._texts: list[io.TextIOWrapper] = []
        try:
            self._open(format_name, more, zone)
        except BaseException:
            self.__exit__()
            raise

    def _open(self, format_name: str, more: Sequence[str], zone: tzinfo) -> None:
        for name in self.names:
            self._raw.append(sys.stdin.buffer if name == STDIN else Path(name).open("rb"))  # noqa: SIM115
            self._texts.append(io.TextIOWrapper(_unpacked(self._raw[-1]), "utf-8", "backslashreplace"))
        self._sizes = [
            0 if name == STDIN else os.fstat(raw.fileno()).st_size
            for name, raw in zip(self.names, self._raw, strict=True)
        ]
        self.total_bytes = sum(self._sizes) if all(self._sizes) else 0
        self._firsts = [_first_line(text, name) for text, name in zip(self._texts, self.names, strict=True)]
        self._formats = [find_format(format_name, line, more, zone) if line else None for _blank, line in self._firsts]
        self.formats = [each for each in self._formats if each is not None]
        if not self.formats:
            raise WrongFormat(f"There are no lines in {', '.join(self.names)}.")

    def __enter__(self) -> LogFiles:
        return self

    def __exit__(self, *_error: object) -> None:
        for name, *streams in zip_longest(self.names, self._texts, self._raw):
            for stream in filter(None, streams) if name != STDIN else ():
                stream.close()  # a decompressing stream does not close the file

    @property
    def holds(self) -> frozenset[str]:
        """The contents of lines in all files, see `LogFormat`."""
        return frozenset.intersection(*(each.holds for each in self.formats))

    def bytes_read(self) -> int:
        """Return how many bytes of the files, as stored, were read."""
        return sum(
            os.lseek(raw.fileno(), 0, os.SEEK_CUR) for raw, size in zip(self._raw, self._sizes, strict=True) if size
        )

    def __iter__(self) -> Iterator[AccessLogLine]:
        several = [self._lines(file) for file in range(len(self._texts))]
        return several[0] if len(several) == 1 else merge(*several, key=itemgetter(0))

    def _lines(self, file: int) -> Iterator[AccessLogLine]:
        found, number = self._formats[file], 0
        if found is None:
            return
        parse = found.parse
        blank, first = self._firsts[file]
        with _damage_named(self.names[file]):
            for text in chain(repeat("\n", blank), (first,), _cut_lines(self._texts[file])):
                number += 1
                try:
                    if len(text) == MAX_TEXT:
                        raise ValueError(f"is longer than {MAX_TEXT:,} characters")
                    yield parse(text, number, file)
                except UNREADABLE as error:
                    if text.strip():
                        self._note(file, number, error, text)

    def _note(self, file: int, number: int, error: Exception, text: str) -> None:
        self.unreadable += 1
        if len(self.shown) < MAX_SHOWN:
            why = f"has no field {error}" if isinstance(error, KeyError) else str(error)
            self.shown.append((self.names[file], number, why, text.rstrip("\n")[:120]))


def _unpacked(raw: Any) -> Any:
    """Return a stream of the content of a file."""
    magic = raw.peek(4)[:4] if hasattr(raw, "peek") else b""
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)
    return _zstd(raw) if magic.startswith(_ZSTD) else raw


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
def _damage_named(name: str) -> Iterator[None]:
    """Raise WrongFormat if a compressed file is truncated or damaged."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (EOFError, zlib.error)) and type(error).__name__ != "ZstdError":
            raise
        raise WrongFormat(f"{name} is cut off or damaged: {error}") from error


def _cut_lines(text: Any) -> Iterator[str]:
    """Yield the lines of a log. Of one that is longer than MAX_TEXT, only the beginning is kept in memory."""
    while line := text.readline(MAX_TEXT):
        yield line
        while len(line) == MAX_TEXT and line[-1] != "\n":
            line = text.readline(MAX_TEXT)


def _first_line(text: Any, name: str) -> tuple[int, str]:
    """Return the number of empty lines at the beginning, and the first other line; "" = there is none."""
    with _damage_named(name):
        for number, line in enumerate(_cut_lines(text)):
            if line.strip():
                return number, line
    return 0, ""
