"""Whom the rules have refused lately: what both engines remember of it, and how it is read.

An entry is named by the named field of its calls, see `usage`: what refuses in the same way adds to the same entry.
Times are kept in steps of a quarter of a second. refused.lua does the same in Redis, where the name is a field of a
hash, and one number of it tells how often and when last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ..base import Verdict
from . import COUNTER, SHADOW, field_of, name_of, without_name

#: Refusals that are counted under one field in one minute are recorded one by one up to here; beyond that, each
#: twentieth stands for twenty. The same numbers stand in check.lua, where refusals must stay cheap.
RECORDED_EXACTLY, RECORDED_ONE_IN = 20, 20

#: Microseconds. Times are stored in steps of the first. After the second without a rejection, the next one begins a new
#: count. After the third, an entry is deleted.
STEP_US, PAUSE_US, FORGOTTEN_US = 250_000, 3_600_000_000, 86_400_000_000

_STEPS_OF_A_MINUTE: Final = 240

#: Steps after which the latest time is stored again, and the highest count.
RENEWED_STEPS, MOST_TIMES = 4, 1 << 19

#: So many entries stand in a list at most. One more, and only so many stay: of each kind the latest, see `shares_of`.
MAX_LISTED, KEPT = 1_000, 600


class Refusal(NamedTuple):
    """A caller that a limit of a rule has rejected recently.

    at_us, since_us: the last rejection, to the second, and the first, in microseconds of the engine's time since
    the Unix epoch. times: the number of rejections in between. label: the label that it is counted under. counter: the
    key of its charge with the tag of the limit. shadow: it would have been rejected. is_estimate: there were so many
    such rejections in a minute that only some were recorded.
    """

    at_us: int
    since_us: int
    times: int
    label: str
    counter: str
    shadow: bool = False
    is_estimate: bool = False

    @property
    def rule(self) -> str:
        """The rule that has rejected the caller."""
        return self.label.partition("|")[0]

    @property
    def tier(self) -> str:
        """The tier of the caller; empty if it has none."""
        return self.label.partition("|")[2]

    @property
    def partition(self) -> str:
        """The digest of the caller's partition, if the limiter has made the key."""
        return self.counter.removeprefix(f"{self.rule}:").partition(":")[0]


class Denial(NamedTuple):
    """Somebody whom an access entry has denied lately.

    what: the entry, and whom it denied where, in words of the application's own without line breaks; up to the first
    space it names the entry. at, since: the last time and the first, in seconds since the Unix epoch. times: how often.
    """

    what: str
    at: int
    since: int
    times: int


class CounterRefusals(NamedTuple):
    """A caller's counters, and the refusals among which theirs are.

    verdicts: of the charges, as by `peek`. refusals: the recent rejections of all callers, the latest first. denials:
    of all callers whom access entries have denied lately.
    """

    verdicts: list[Verdict]
    refusals: list[Refusal]
    denials: list[Denial]


class RefusalEntry(NamedTuple):
    """Refusals by the same counters in the same way. last, since: in steps. times: how many."""

    last: int
    since: int
    times: int


class RefusalCounts(NamedTuple):
    """What an engine remembers, or one shard of it.

    entries: by name. sampled: by field, the step at which refusals that are counted there were last recorded for many.
    """

    entries: Mapping[str, RefusalEntry]
    sampled: Mapping[str, int]


def refused_labels(field: str) -> list[str]:
    """Return the label of each charge that has refused the calls of a field; of a shadow charge as it stands there."""
    *labels, outcomes = field.split("\n")
    return [label for label, outcome in zip(labels, outcomes, strict=False) if outcome in "dD"]


def refusals_of(remembered: Iterable[RefusalCounts]) -> list[Refusal]:
    """Return all refusals, one for each counter."""
    by_counter: dict[str, list[tuple[RefusalEntry, str]]] = {}
    sampled: dict[str, int] = {}
    for entries, marks in remembered:
        for name, entry in entries.items():
            field, *counters = name.split(COUNTER)
            for label, counter in zip(refused_labels(field), counters, strict=False):
                if label:
                    by_counter.setdefault(counter, []).append((entry, label))
        for field, step in marks.items():
            for label in refused_labels(field):
                sampled[label] = max(sampled.get(label, 0), step)
    return [_merged(counter, found, sampled) for counter, found in by_counter.items()]


def _merged(counter: str, found: list[tuple[RefusalEntry, str]], sampled: Mapping[str, int]) -> Refusal:
    """Return a counter's refusals as one, by its entries, each with its label."""
    found.sort(key=lambda each: (-each[0].last, each))
    (last, since, times), label = found[0]
    for entry, _ in found[1:]:
        if (since - entry.last) * STEP_US >= PAUSE_US:
            break
        since, times = min(since, entry.since), times + entry.times
    shadow, is_estimate = label.startswith(SHADOW), sampled.get(label, -1) >= since
    return Refusal(last * STEP_US, since * STEP_US, times, label.removeprefix(SHADOW), counter, shadow, is_estimate)


def latest(
    remembered: Iterable[RefusalCounts], now_us: int, limit: int | None = None, rule: str | None = None
) -> list[Refusal]:
    """Return so many refusals at most, the latest first, and none that is forgotten. rule: of this rule only."""
    since = now_us - FORGOTTEN_US
    found = [each for each in refusals_of(remembered) if each.at_us > since and (rule is None or each.rule == rule)]
    return sorted(found, key=lambda each: (-each.at_us, each.counter))[:limit]


def shares_of(kinds: Sequence[Sequence[int]], most: int) -> list[int]:
    """Return how many of each kind stay, of so many in all: one that has many takes no room that others need.

    kinds: the steps of the entries of each, from the kind that has least.
    """
    shares = []
    for place, steps in enumerate(kinds):
        shares.append(min(len(steps), most // (len(kinds) - place)))
        most -= shares[-1]
    return shares


class RecentRefusals:
    """The refusals that MemoryEngine remembers. Not locked: its engine is."""

    def __init__(self) -> None:
        self._entries: dict[str, RefusalEntry] = {}
        self._sampled: dict[str, int] = {}

    @property
    def remembered(self) -> RefusalCounts:
        """All of them."""
        return RefusalCounts(self._entries, self._sampled)

    def record(self, verdicts: Sequence[Verdict], counted: int, now_us: int) -> None:
        """Record whom these verdicts refuse. counted: so many calls were decided like this one in its minute."""
        field = field_of(verdicts)
        name, weight = name_of(field, verdicts), RECORDED_ONE_IN if counted > RECORDED_EXACTLY else 1
        if name == field or (counted > RECORDED_EXACTLY and counted % RECORDED_ONE_IN):
            return
        self._add(name, weight, now_us // STEP_US)
        if counted % RECORDED_ONE_IN == 0:
            self._sampled[field] = now_us // STEP_US

    def record_local(self, counts: tuple[int, str, int], counted: int, now_us: int) -> None:
        """Record what a process has decided by itself. counts: a minute, a field that may be a named one, and calls.

        counted: so many calls were decided like these in that minute.
        """
        minute, name, calls = counts
        field, step = without_name(name), min(now_us // STEP_US, (minute + 1) * _STEPS_OF_A_MINUTE - 1)
        if name != field:
            self._add(name, calls, step)
        if refused_labels(field) and (name == field or counted >= RECORDED_EXACTLY):
            self._sampled[field] = step

    def _add(self, name: str, weight: int, step: int) -> None:
        entry = self._entries.get(name)
        if entry is None or (step - entry.last) * STEP_US >= PAUSE_US:
            self._entries[name] = RefusalEntry(step, step, weight)
        elif step - entry.last >= RENEWED_STEPS:
            self._entries[name] = RefusalEntry(step, entry.since, min(entry.times + weight, MOST_TIMES))
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
