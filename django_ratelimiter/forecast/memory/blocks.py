"""Blocks of lines from all parts of some logs, and estimates of how many different values the logs have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from math import sqrt
from pathlib import Path
from typing import IO, Final, NamedTuple

from ...values.bounds import MAX_TEXT
from ..logs.formats import Parse
from ..logs.line import AccessLogLine
from ..logs.reading import UNREADABLE, LogFiles

#: One byte in this many is read, in blocks of this many bytes: at least 1 MB, and at most 4 MB.
ONE_IN: Final = 20
BLOCK_BYTES: Final = 32_768
MIN_BLOCKS: Final = 32
MAX_BLOCKS: Final = 128


class LogBlocks(NamedTuple):
    """Some lines of logs. blocks: successive lines. lines: in all logs, about. is_whole: these are all.

    seconds: between the earliest and the latest line.
    """

    blocks: list[list[AccessLogLine]]
    lines: int
    is_whole: bool
    seconds: float

    @property
    def share(self) -> float:
        """Return the share of all lines that these are, above 0 and at most 1."""
        return min(1.0, sum(map(len, self.blocks)) / max(self.lines, 1))


class Between(NamedTuple):
    """An uncertain number: about from `low` to `high`."""

    low: int
    high: int


def read_blocks(files: LogFiles) -> LogBlocks | None:
    """Return blocks of the logs; `None` = one is standard input, or compressed, or they have no readable line."""
    if not files.total_bytes or not all(files.are_plain):
        return None
    most = most_blocks(files)
    is_whole = files.total_bytes <= most * BLOCK_BYTES
    blocks, taken = list[list[AccessLogLine]](), 0
    for name, size, parse in files.parts():
        count = -(-size // BLOCK_BYTES) if is_whole else max(1, most * size // files.total_bytes)
        with Path(name).open("rb") as raw:
            for number in range(count):
                start = number * BLOCK_BYTES if is_whole else (size - BLOCK_BYTES) * number // max(count - 1, 1)
                lines, length = _block(raw, start, parse)
                taken += length
                blocks.append(lines)
    blocks = [block for block in blocks if block]
    if not blocks:
        return None
    times = [line.time_us for block in blocks for line in block]
    read = sum(map(len, blocks))
    total = read if is_whole else max(read, round(read * files.total_bytes / taken))
    return LogBlocks(blocks, total, is_whole, (max(times) - min(times)) / 1_000_000)


def most_blocks(files: LogFiles) -> int:
    """Return the number of blocks that are read of these logs."""
    return min(max(files.total_bytes // (ONE_IN * BLOCK_BYTES), MIN_BLOCKS), MAX_BLOCKS)


def _block(raw: IO[bytes], start: int, parse: Parse) -> tuple[list[AccessLogLine], int]:
    """Return the readable lines that begin in the block at `start`, and the bytes of all that do."""
    raw.seek(max(start - 1, 0))
    if start:
        raw.readline(MAX_TEXT)  # the rest of a line that begins before the block
    lines, begun = list[AccessLogLine](), raw.tell()
    while (at := raw.tell()) < start + BLOCK_BYTES and (text := raw.readline(MAX_TEXT)):
        with suppress(*UNREADABLE):
            lines.append(parse(text.decode("utf-8", "backslashreplace"), 0, 0))
    return lines, max(at, raw.tell()) - begun


def distinct(seen: Iterable[Iterable[object]], blocks: LogBlocks) -> Between:
    """Return how many different values all lines have, given those of each block.

    low: Chao's estimate from values in one block and in two; it misses rare values. high: the estimate
    of Charikar and others, with the least error in the worst case.
    """
    times = Counter(value for block in seen for value in set(block))
    several = Counter(times.values())
    found, once, twice = len(times), several[1], several[2]
    if blocks.is_whole or not found:
        return Between(found, found)
    most = round(found / blocks.share)
    low = min(found + round(once * (once - 1) / (2 * (twice + 1))), most)
    high = min(found - once + round(sqrt(1 / blocks.share) * once), most)
    return Between(low, max(low, high))
