"""The recent rejections: the list that both engines keep, and how it is read.

The name of an entry is the named field of its calls, see `usage`: identical rejections add to the same entry.
Times are in steps of a quarter of a second. rejected.lua does the same in Redis: there the name is a field of a
hash, and its number contains the count and the time of the latest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..base import Alias, Verdict, tail_of
from . import CALLER, CONTINUES, COUNTER, SHADOW, name_of, without_callers, without_name

#: Rejections that are counted under one field in one minute are recorded one by one up to this number; above that, each
#: twentieth is recorded as twenty. check.lua has the same numbers, so that rejections stay cheap.
RECORDED_EXACTLY, RECORDED_ONE_IN = 20, 20

#: Microseconds. Times are stored in steps of the first. After the second without a rejection, the next one begins a new
#: count. After the third, an entry is deleted.
STEP_US, PAUSE_US, FORGOTTEN_US = 250_000, 3_600_000_000, 86_400_000_000

_STEPS_OF_A_MINUTE: Final = 240

#: Steps after which the latest time is stored again, and the highest count.
RENEWED_STEPS, MAX_TIMES = 4, 1 << 18

#: Maximum number of entries in a list; above that, only this number remains: the latest of each kind, see `shares_of`.
MAX_LISTED, KEPT = 1_000, 600


class Rejection(NamedTuple):
    """A caller that a limit of a rule has rejected recently.

    at_us, since_us: the last rejection, to the second, and the first, in microseconds of the engine's time since
    the Unix epoch. times: the number of rejections in between. label: the label that it is counted under. counter: the
    key of its charge with the tag of the limit. shadow: it would have been rejected. is_estimate: there were so many
    such rejections in a minute that only some were recorded. tail: of the caller, see `base.Alias`; "" = none, or not
    known.
    """

    at_us: int
    since_us: int
    times: int
    label: str
    counter: str
    shadow: bool = False
    is_estimate: bool = False
    tail: str = ""

    @property
    def rule(self) -> str:
        """The rule that has rejected the caller."""
        return self.label.partition("|")[0]

    @property
    def tier(self) -> str:
        """The tier of the caller; empty if it has none."""
        return self.label.partition("|")[2]

    @property
    def partition(self) -> Alias:
        """The digest of the caller's partition, if the limiter has made the key, with its tail if that is known."""
        return Alias.of(self.counter.removeprefix(f"{self.rule}:").partition(":")[0], self.tail)


class RejectionEntry(NamedTuple):
    """Rejections by the same counters in the same way. last, since: in steps. times: how many."""

    last: int
    since: int
    times: int


class RejectionCounts(NamedTuple):
    """The recent rejections of an engine, or of one of its shards.

    entries: by name. sampled: by field, the step at which its rejections were last recorded in bulk. tails: by caller.
    """

    entries: Mapping[str, RejectionEntry]
    sampled: Mapping[str, int]
    tails: Mapping[str, str]


def rejected_labels(field: str) -> list[str]:
    """Return the label of each charge that has rejected the calls of a field; shadow labels keep their prefix."""
    *labels, outcomes = field.split("\n")
    pairs = zip(labels, outcomes, strict=False)
    rejected = [label for label, outcome in pairs if outcome in "dD" and not label.startswith(CONTINUES)]
    return [re.split(f"[\t{CALLER}]", label)[0] for label in rejected]


def rejections_of(remembered: Iterable[RejectionCounts]) -> list[Rejection]:
    """Return all rejections, one for each counter."""
    by_counter: dict[str, list[tuple[RejectionEntry, str]]] = {}
    sampled: dict[str, int] = {}
    known: dict[str, str] = {}
    for entries, marks, tails in remembered:
        known.update(tails)
        for name, entry in entries.items():
            field, *counters = name.split(COUNTER)
            for label, counter in zip(rejected_labels(field), counters, strict=False):
                if label.removeprefix(SHADOW):
                    by_counter.setdefault(counter, []).append((entry, label))
        for field, step in marks.items():
            for label in rejected_labels(field):
                sampled[label] = max(sampled.get(label, 0), step)
    merged = [_merged(counter, found, sampled) for counter, found in by_counter.items()]
    return [each._replace(tail=known.get(each.partition, "")) for each in merged]


def _merged(counter: str, found: list[tuple[RejectionEntry, str]], sampled: Mapping[str, int]) -> Rejection:
    """Return the rejections of a counter as one, from its entries, each with its label."""
    found.sort(key=lambda each: (-each[0].last, each))
    (last, since, times), label = found[0]
    labels = {label}  # those of earlier tiers, too
    for entry, earlier in found[1:]:
        if (since - entry.last) * STEP_US >= PAUSE_US:
            break
        since, times = min(since, entry.since), times + entry.times
        labels.add(earlier)
    shadow, is_estimate = label.startswith(SHADOW), any(sampled.get(each, -1) >= since for each in labels)
    return Rejection(last * STEP_US, since * STEP_US, times, label.removeprefix(SHADOW), counter, shadow, is_estimate)


def latest(
    remembered: Iterable[RejectionCounts], now_us: int, limit: int | None = None, rule: str | None = None
) -> list[Rejection]:
    """Return at most this number of rejections, the latest first, without expired ones. rule: of this rule only."""
    since = now_us - FORGOTTEN_US
    found = [each for each in rejections_of(remembered) if each.at_us > since and (rule is None or each.rule == rule)]
    return sorted(found, key=lambda each: (-each.at_us, each.counter))[:limit]


def shares_of(kinds: Sequence[Sequence[int]], most: int) -> list[int]:
    """Return how many of each kind remain, of `most` in all: a kind with many entries leaves room for the others.

    kinds: the steps of the entries of each, starting with the smallest kind.
    """
    shares = []
    for place, steps in enumerate(kinds):
        shares.append(min(len(steps), most // (len(kinds) - place)))
        most -= shares[-1]
    return shares


class RecentRejections:
    """The recent rejections of MemoryEngine. Not locked: its engine has the lock."""

    def __init__(self) -> None:
        self._entries: dict[str, RejectionEntry] = {}
        self._sampled: dict[str, int] = {}
        self.tails: dict[str, str] = {}

    @property
    def remembered(self) -> RejectionCounts:
        """Return all of them."""
        return RejectionCounts(self._entries, self._sampled, self.tails)

    def record(self, verdicts: Sequence[Verdict], field: str, counted: int, now_us: int) -> None:
        """Record the callers that these verdicts reject. counted: calls with the same field in this minute."""
        name, weight = name_of(field, verdicts), RECORDED_ONE_IN if counted > RECORDED_EXACTLY else 1
        if name == field or (counted > RECORDED_EXACTLY and counted % RECORDED_ONE_IN):
            return
        for verdict in verdicts:
            if not verdict.allowed and (tail := tail_of(verdict.charge.partition)):
                self.tails[str(verdict.charge.partition)] = tail
        self._add(without_callers(name), weight, now_us // STEP_US)
        if counted % RECORDED_ONE_IN == 0:
            self._mark_sampled(without_callers(field), now_us // STEP_US)

    def record_local(self, counts: tuple[int, str, int], counted: int, now_us: int) -> None:
        """Record a decision of a process. counts: a minute, a field, which may be a named one, and calls.

        counted: calls with the same field in that minute.
        """
        minute, name, calls = counts
        field, step = without_name(name), min(now_us // STEP_US, (minute + 1) * _STEPS_OF_A_MINUTE - 1)
        if name != field:
            self._add(without_callers(name), calls, step)
        if rejected_labels(field) and (name == field or counted >= RECORDED_EXACTLY):
            self._mark_sampled(without_callers(field), step)

    def _mark_sampled(self, field: str, step: int) -> None:
        self._sampled.pop(field, None)
        self._sampled[field] = step
        if len(self._sampled) > MAX_LISTED:
            del self._sampled[next(iter(self._sampled))]

    def _add(self, name: str, weight: int, step: int) -> None:
        entry = self._entries.get(name)
        if entry is None or (step - entry.last) * STEP_US >= PAUSE_US:
            self._entries[name] = RejectionEntry(step, step, weight)
        elif step - entry.last >= RENEWED_STEPS:
            self._entries[name] = RejectionEntry(step, entry.since, min(entry.times + weight, MAX_TIMES))
        else:
            self._entries[name] = entry._replace(times=entry.times + weight)
        if entry is None and len(self._entries) > MAX_LISTED:
            self._trim()

    def _trim(self) -> None:
        kinds: dict[str, list[int]] = {}
        for name, entry in self._entries.items():
            kinds.setdefault(name.partition(COUNTER)[0], []).append(entry.last)
        fields = sorted(kinds, key=lambda field: (len(kinds[field]), max(kinds[field])))
        for field, share in zip(fields, shares_of([kinds[field] for field in fields], KEPT), strict=True):
            oldest = sorted(kinds[field])[-share] if share else max(kinds[field]) + 1
            for name in [each for each in self._entries if each.partition(COUNTER)[0] == field]:
                if self._entries[name].last < oldest:
                    del self._entries[name]
        held = {part for name in self._entries for part in re.split("[:\n]", name)}
        self.tails = {caller: tail for caller, tail in self.tails.items() if caller in held}
