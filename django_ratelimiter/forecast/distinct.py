"""Counting different callers: exact while they are few, then with a table of fixed size."""

from __future__ import annotations

from hashlib import blake2b
from math import log
from typing import Final

#: Maximum number that is counted exactly.
MAX_EXACT: Final = 50_000

#: Bits of the table above that: 1 MB. Of a million callers it misses about 300, of ten million about 3,000.
BITS: Final = 2**23


class Distinct:
    """Counts different texts. Memory: at most about 4 MB, then 1 MB."""

    def __init__(self) -> None:
        self._exact: set[int] | None = set()
        self._table = bytearray()
        self._taken = 0

    def add(self, text: str) -> None:
        """Count this text, unless it was counted before."""
        number = int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest())
        if self._exact is None:
            self._mark(number)
            return
        self._exact.add(number)
        if len(self._exact) > MAX_EXACT:
            self._table = bytearray(BITS // 8)
            for each in self._exact:
                self._mark(each)
            self._exact = None

    @property
    def is_exact(self) -> bool:
        """True if the number is not an estimate."""
        return self._exact is not None

    def __len__(self) -> int:
        if self._exact is not None:
            return len(self._exact)
        return round(-BITS * log(max(BITS - self._taken, 1) / BITS))  # linear counting

    def _mark(self, number: int) -> None:
        place, bit = (number % BITS) >> 3, 1 << (number & 7)
        if not self._table[place] & bit:
            self._table[place] |= bit
            self._taken += 1
