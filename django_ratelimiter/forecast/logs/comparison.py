"""The traffic of a log under one or two rule sets, in one pass."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from time import perf_counter
from typing import Final

from django.utils.translation import gettext as _

from ...rules.ruleset import RuleSet
from .agreement import Agreement, agreement
from .blind_spots import LeftOut, doubts, known_identities, without_blind_spots
from .callers import LoggedCallers
from .changes import Changes, OutcomeCounts
from .line import AccessLogLine
from .outcomes import ReplayOutcome
from .reading import SAMPLED, LogFiles
from .replay import Replay
from .targets import target_finder

#: Number of lines that are read at once, so that one query reads their users.
CHUNK: Final = 2_000

#: Maximum number of counters that are in use at one time, and of callers, unless the user says otherwise.
MAX_COUNTERS: Final = 2_000_000

#: Called with the number of lines decided so far.
Progress = Callable[[int], None]

#: Called for each decided request: the line, and both rule sets with their counters.
Watch = Callable[[AccessLogLine, Sequence[Replay]], None]


class TooManyCounters(ValueError):
    """A replay would have to remember more than it may; it has no result."""


@dataclass(slots=True)
class ReplayReport:
    """What a replay has found. Its text, JSON, CSV and HTML are made of it; see `report`."""

    #: The logs, with the lines that cannot be read.
    files: LogFiles
    before: RuleSet
    #: `None` = there is only one rule set.
    after: RuleSet | None
    changes: Changes
    #: The rules that are not replayed.
    left_out: list[LeftOut]
    #: What the log does not contain, as text.
    doubts: list[str]
    #: The comparison with the recorded usage; `None` if the first rules are not the current ones.
    check: Agreement | None
    #: Requests that some entry point decides, those that no rule applies to, and those of views with rates in code.
    decided: int
    exempt: int
    inline: int
    #: Users of the log that are not in the database, and lines that are earlier than a line before.
    unknown_users: int
    out_of_order: int
    #: The time of the traffic; 0 = there is none.
    first_us: int
    last_us: int
    #: How long the replay took.
    seconds: float


@dataclass(slots=True)
class Options:
    """How to replay.

    identities: the identity in a field of the log, by the field. any_delay: requests may be delayed as long
    as a queue requires, as on an event loop. max_counters: in use at one time. top: callers in the list. is_current:
    the first rules are those in force, so that they are compared with the recorded usage.
    """

    identities: Mapping[str, str] = field(default_factory=dict)
    any_delay: bool = False
    max_counters: int = MAX_COUNTERS
    top: int = 20
    is_current: bool = False


def compare(
    files: LogFiles,
    before: RuleSet,
    after: RuleSet | None,
    options: Options,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> ReplayReport:
    """Replay a log with one rule set, or with two side by side. after: `None` = there is only one.

    Raises TooManyCounters.
    """
    mapped = tuple(options.identities.values())
    callers = LoggedCallers(mapped)
    lines = iter(files)
    sample = list(islice(lines, SAMPLED))
    callers.read_users(sample)
    known = known_identities(files.holds, mapped, has_users=callers.knows_users)
    rule_sets = [before] if after is None else [before, after]
    usable, left_out = [], list[LeftOut]()
    for each in rule_sets:
        rules, lacking = without_blind_spots(each, known, files.holds)
        usable.append(rules)
        left_out += (each for each in lacking if each not in left_out)
    max_delay = None if options.any_delay else "rule"
    callers.rule_sets = usable
    replays = [
        Replay(rules, callers.entries, max_delay=max_delay, max_counters=options.max_counters // len(usable))
        for rules in usable
    ]
    run = _Run(callers, replays, watch)
    began = perf_counter()
    with _without_garbage_collection():
        for chunk in _chunks(chain(sample, lines)):
            run.decide(chunk)
            run.require_at_most(options.max_counters)
            if progress:
                progress(run.lines)
    seconds = perf_counter() - began
    slugs = {rule.slug for rule in usable[0].rules}
    return ReplayReport(
        files,
        before,
        after,
        run.outcomes.changes(options.top),
        left_out,
        doubts(usable, files.holds, known),
        agreement(run.outcomes.counts, slugs, run.first_us, run.last_us) if options.is_current else None,
        decided=run.lines - run.exempt,
        exempt=run.exempt,
        inline=run.inline,
        unknown_users=callers.unknown_users,
        out_of_order=run.out_of_order,
        first_us=run.first_us if run.lines else 0,
        last_us=run.last_us,
        seconds=seconds,
    )


class _Run:
    """One pass over a log."""

    def __init__(self, callers: LoggedCallers, replays: Sequence[Replay], watch: Watch | None) -> None:
        self.callers, self.replays, self.watch = callers, replays, watch
        self.find_target = target_finder()
        self.outcomes = OutcomeCounts()
        self.lines = self.exempt = self.inline = self.out_of_order = 0
        self.first_us, self.last_us = 2**62, 0

    def decide(self, lines: Sequence[AccessLogLine]) -> None:
        """Decide the requests of these lines."""
        self.callers.read_users(lines)
        find_target, find_caller, add = self.find_target, self.callers.find, self.outcomes.add
        first, other = self.replays[0], self.replays[-1]
        latest = self.last_us
        for line in lines:
            now = line.time_us
            if now >= latest:
                latest = now
            else:
                self.out_of_order += 1
                self.first_us = min(self.first_us, now)
            target = find_target(line.method, line.path)
            if not target.calls:
                self.exempt += 1
                continue
            caller = find_caller(line)
            if caller.is_new:
                caller.is_new = False
                self.outcomes.callers.add(caller.name)
            before: ReplayOutcome = first.decide(line, target, caller)
            after = before if other is first else other.decide(line, target, caller)
            add(now, target.view, caller.name, before, after)
            if target.has_inline:
                self.inline += 1
            if self.watch:
                self.watch(line, self.replays)
        self.lines += len(lines)
        self.first_us, self.last_us = min(self.first_us, lines[0].time_us), latest

    def require_at_most(self, most: int) -> None:
        """Raise TooManyCounters if counters were dropped that were still in use, or more callers are remembered."""
        if self.outcomes.remembered > most or any(replay.engine.dropped_counters for replay in self.replays):
            text = _(
                "Stopped at line %(line)s: more than %(most)s counters or callers would have to be remembered. Raise "
                "--max-counters (a million take about 0.5 GB), or replay a part of the log."
            )
            raise TooManyCounters(text % {"line": f"{self.lines:,}", "most": f"{most:,}"})


def _chunks(lines: Iterable[AccessLogLine]) -> Iterator[list[AccessLogLine]]:
    several = iter(lines)
    while chunk := list(islice(several, CHUNK)):
        yield chunk


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: a replay makes no cycles, and it would search millions of counters."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
