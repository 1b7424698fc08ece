"""Keys of a test's own, and times in microseconds, for the tests of single engines."""

from __future__ import annotations

from itertools import count

_numbers = count()


def fresh() -> str:
    """A key that nobody else has used."""
    return f"key{next(_numbers)}"


def microseconds(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1_000_000)
