"""Statistics of partitions: the top partitions of each hour, and samples per minute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar
from zlib import crc32

from .base import Alias, Verdict
from .base import noted as written

K = TypeVar("K")

HOUR_US: Final = 3_600_000_000
MINUTE_US: Final = 60_000_000

#: How many partitions are counted for each rule, hour and outcome, and how many remain when these are too many.
MAX_RANKED: Final = 400
RANKED_AFTER_TRIM: Final = 200

#: Maximum number of labels and partitions that are sampled in one minute, for all rules together.
MAX_SAMPLED: Final = 1_000

#: An hour since the Unix epoch, with a rule, or with the label of callers over all rules.
Hour = tuple[int, str]


def is_sampled(partition: str) -> bool:
    """Return whether this partition is sampled: one in sixteen, always the same ones."""
    return crc32(partition.encode()) >> 28 == 0


def rule_of(label: str) -> str:
    """Return the rule of a label."""
    return label.partition("|")[0]


def merge_top(weights: dict[str, tuple[int, int]], most: int) -> dict[str, tuple[int, int]]:
    """Return the partitions with the most allowed and those with the most rejected requests, in turn.

    weights: allowed and rejected requests, by partition.
    """
    ranks = [sorted(weights, key=lambda each: (-weights[each][side], each)) for side in (0, 1)]
    chosen: dict[str, tuple[int, int]] = {}
    for pair in zip(*ranks, strict=True):
        for side, partition in enumerate(pair):
            if len(chosen) < most and weights[partition][side] > 0:
                chosen[partition] = weights[partition]
    return chosen


def sums_of(counts: Iterable[tuple[K, str, int]]) -> dict[tuple[K, str], int]:
    """Return the sums of counts by what is counted and caller. counts: each with these, the caller as `noted`.

    Of a caller that is also noted without a tail, as REVEAL has changed, the tail remains.
    """
    sums: dict[tuple[K, str], int] = {}
    for what, text, count in sorted(counts, key=lambda each: "\t" not in each[1]):
        of = what, Alias.of_note(text)
        sums[of] = sums.get(of, 0) + count
    return sums


def top_of(counts: Iterable[tuple[int, str, int]], most: int) -> dict[str, tuple[int, int]]:
    """Return the top callers. counts: of 0 = allowed and 1 = rejected requests, see `sums_of`.

    Estimates of allowed requests, less those that were rejected later, may fall below 0.
    """
    sums = sums_of(counts)
    return merge_top({who: (max(sums.get((0, who), 0), 0), sums.get((1, who), 0)) for _, who in sums}, most)


class MemoryPartitions:
    """The partitions that MemoryEngine has counted, exact up to the maxima. Not locked: its engine has the lock.

    now_us: returns the time in microseconds since the Unix epoch.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self._weights: tuple[dict[Hour, dict[str, int]], ...] = ({}, {})
        self._samples: dict[int, dict[tuple[str, str], int]] = {}

    def note(
        self,
        verdicts: Sequence[Verdict],
        pools: Iterable[tuple[str, int, list[int]]],
        now: int,
        *,
        is_rejected: bool,
        noted: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Count the partitions of a call that was decided now. pools: of its template. noted: see `Call`.

        is_rejected: what another rule rejects is neither allowed nor rejected by this one.
        """
        for earlier in noted if is_rejected else ():
            self._take_back(*earlier, now // HOUR_US)
        passed: dict[tuple[str, str], bool] = {}
        for verdict in verdicts:
            label, partition = verdict.charge.usage, verdict.charge.partition
            if label is not None and partition is not None:
                passed[label, partition] = passed.get((label, partition), True) and verdict.allowed
        for (label, partition), allowed in passed.items():
            if not (allowed and is_rejected):
                self._weigh(label, partition, now // HOUR_US, allowed)
            self._sample(label, partition, now // MINUTE_US)
        for label, place, numbers in pools:
            allowed = all(verdicts[number - 1].allowed for number in numbers)
            if not (allowed and is_rejected):
                self._weigh(label, verdicts[place].charge.partition or "", now // HOUR_US, allowed)

    def _sample(self, label: str, partition: str, minute: int) -> None:
        if is_sampled(partition):
            samples, whom = self._samples.setdefault(minute, {}), (label, written(partition))
            if whom in samples or len(samples) < MAX_SAMPLED:
                samples[whom] = samples.get(whom, 0) + 1

    def _take_back(self, label: str, partition: str, hour: int) -> None:
        weights, who = self._weights[0].setdefault((hour, rule_of(label)), {}), written(partition)
        weights[who] = weights.get(who, 0) - 1
        if label.startswith("*"):  # over all rules
            self._weigh(label, partition, hour, allowed=False)

    def _weigh(self, label: str, partition: str, hour: int, allowed: bool) -> None:
        weights, who = self._weights[not allowed].setdefault((hour, rule_of(label)), {}), written(partition)
        weights[who] = weights.get(who, 0) + 1
        if len(weights) > MAX_RANKED:
            for light in sorted(weights, key=lambda each: (weights[each], each))[:-RANKED_AFTER_TRIM]:
                del weights[light]

    def forget_before(self, minute: int) -> None:
        """Drop data that was not collected, of hours that began before this minute, too."""
        self.drop_top([each for weights in self._weights for each in weights if each[0] * 60 < minute])
        self.drop_samples([each for each in self._samples if each < minute])

    def hours(self) -> set[Hour]:
        """Return the hours and rules with top partitions."""
        return {each for weights in self._weights for each in weights}

    def top_partitions(self, asked: Sequence[Hour], most: int) -> list[dict[str, tuple[int, int]]]:
        """Return the top partitions of these hours and rules, with their allowed and rejected requests."""
        return [
            top_of([(side, *pair) for side in (0, 1) for pair in self._weights[side].get(each, {}).items()], most)
            for each in asked
        ]

    def drop_top(self, asked: Iterable[Hour]) -> None:
        """Delete the top partitions of these hours and rules."""
        for each in asked:
            for weights in self._weights:
                weights.pop(each, None)

    def samples(self, before: int, most: int | None = None) -> dict[int, dict[tuple[str, str], int]]:
        """Return requests by label and partition for each minute before `before`. most: of the oldest minutes."""
        minutes = sorted(minute for minute in self._samples if minute < before)[:most]
        return {minute: sums_of((*key, n) for key, n in self._samples[minute].items()) for minute in minutes}

    def drop_samples(self, minutes: Iterable[int]) -> None:
        """Delete the samples of these minutes."""
        for minute in minutes:
            self._samples.pop(minute, None)
