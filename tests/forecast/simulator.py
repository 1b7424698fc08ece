"""The eight algorithms once more, by exact fractions and without the engine: what a rule rejects of a caller.

Written from the descriptions in the docs. Slow, and therefore plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

#: Seconds; and until when the response is sent.
Sent = tuple[Fraction, Fraction]


def rejected(
    algorithm: str, quota: int, window: Fraction, requests: Sequence[Sent], burst: int = 0, max_delay: int = 0
) -> list[int]:
    """Return the places of the requests, sorted by time, that a limit rejects."""
    allow = _ALGORITHMS[algorithm](quota, window, burst or quota, max_delay)
    return [place for place, (at, end) in enumerate(requests) if not allow(at, end)]


def _fixed_window(quota: int, window: Fraction, _burst: int, _delay: int) -> Callable[..., bool]:
    used: dict[int, int] = {}

    def allow(at: Fraction, _end: Fraction) -> bool:
        place = at // window
        if used.get(place, 0) >= quota:
            return False
        used[place] = used.get(place, 0) + 1
        return True

    return allow


def _sliding_window_counter(quota: int, window: Fraction, _burst: int, _delay: int) -> Callable[..., bool]:
    used: dict[int, int] = {}

    def allow(at: Fraction, _end: Fraction) -> bool:
        place, elapsed = at // window, at % window
        before = used.get(place - 1, 0) * (1 - elapsed / window)
        if before + used.get(place, 0) + 1 > quota:
            return False
        used[place] = used.get(place, 0) + 1
        return True

    return allow


def _sliding_window_log(quota: int, window: Fraction, _burst: int, _delay: int) -> Callable[..., bool]:
    times: list[Fraction] = []

    def allow(at: Fraction, _end: Fraction) -> bool:
        if sum(at - window < each <= at for each in times) >= quota:
            return False
        times.append(at)
        return True

    return allow


def _sliding_window_slots(quota: int, window: Fraction, _burst: int, _delay: int) -> Callable[..., bool]:
    slots: list[int] = []

    def allow(at: Fraction, _end: Fraction) -> bool:
        slot = at // (window / 10)
        if sum(slot - 10 < each <= slot for each in slots) >= quota:
            return False
        slots.append(slot)
        return True

    return allow


def _token_bucket(quota: int, window: Fraction, burst: int, _delay: int) -> Callable[..., bool]:
    level, last = Fraction(burst), Fraction(0)

    def allow(at: Fraction, _end: Fraction) -> bool:
        nonlocal level, last
        level, last = min(Fraction(burst), level + (at - last) * quota / window), at
        if level < 1:
            return False
        level -= 1
        return True

    return allow


def _leaky_bucket(quota: int, window: Fraction, burst: int, max_delay: int) -> Callable[..., bool]:
    backlog, last = Fraction(0), Fraction(0)  # in requests

    def allow(at: Fraction, _end: Fraction) -> bool:
        nonlocal backlog, last
        backlog, last = max(Fraction(0), backlog - (at - last) * quota / window), at
        if backlog + 1 > burst or backlog * window / quota > max_delay:
            return False
        backlog += 1
        return True

    return allow


def _concurrency(quota: int, window: Fraction, _burst: int, _delay: int) -> Callable[..., bool]:
    held: list[Fraction] = []

    def allow(at: Fraction, end: Fraction) -> bool:
        held[:] = [each for each in held if each > at]
        if len(held) >= quota:
            return False
        held.append(min(end, at + window))
        return True

    return allow


_ALGORITHMS: dict[str, Callable[[int, Fraction, int, int], Callable[..., bool]]] = {
    "fixed_window": _fixed_window,
    "sliding_window_counter": _sliding_window_counter,
    "sliding_window_log": _sliding_window_log,
    "sliding_window_slots": _sliding_window_slots,
    "token_bucket": _token_bucket,
    "gcra": _token_bucket,
    "leaky_bucket": _leaky_bucket,
    "concurrency": _concurrency,
}
