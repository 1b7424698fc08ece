"""The traffic of a log under one or two rule sets, in one pass."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import Final

from django.utils.translation import gettext as _

from ...rules.ruleset import RuleSet
from .agreement import Agreement, agreement
from .blind_spots import Blind, changes_of, doubts, known_identities, unmatched, unseen, without_blind_spots
from .callers import PROXY, LoggedCallers
from .changes import Changes, OutcomeCounts
from .line import AccessLogLine, WrongFormat
from .outcomes import ReplayOutcome
from .reading import CHUNK, SAMPLED, LogFiles
from .replay import Replay
from .targets import UNREACHED, EntryCall, target_finder

#: The memory that the process may take, in MB, unless the user says otherwise.
MAX_MEMORY: Final = 1_000

#: A replay stops at this share of it: a dictionary that grows needs more at once.
_FULL: Final = 0.9

#: If this share of a file's addresses are those of trusted proxies, it names no callers; else these are health checks.
_PROXIES: Final = 0.9

#: Called with the number of lines decided so far.
Progress = Callable[[int], None]

#: Called for each decided request: the line, and both rule sets with their counters.
Watch = Callable[[AccessLogLine, Sequence[Replay]], None]


class TooMuchMemory(ValueError):
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
    #: The rules that are not replayed, and those of the last rule set that the lines do not let judge.
    left_out: list[Blind]
    unseen: list[Blind]
    #: Lines that lack what they should have, by what they lack: "ip" or another identity, "duration" or "status".
    lacking: Mapping[str, int]
    #: What the log does not contain, as text.
    doubts: list[str]
    #: The comparison with the recorded usage; `None` if the first rules are not the current ones.
    check: Agreement | None
    #: Requests that some entry point decides, those that no rule applies to, those of views with rates in code, and
    #: lines of requests that never reach Django.
    decided: int
    exempt: int
    inline: int
    unreached: int
    #: Users of the log that are not in the database.
    unknown_users: int
    #: The time of the traffic; 0 = there is none.
    first_us: int
    last_us: int
    #: How long the replay took.
    seconds: float

    @property
    def is_known(self) -> bool:
        """False if no rule could be judged, of those that change; then the number of rejections says nothing."""
        total, is_difference = self.changes.total, self.after is not None
        rules = changes_of(self.before if is_difference else None, self.after or self.before)
        blind = [each for each in [*self.left_out, *self.unseen] if each.is_whole]
        slugs = {rule.slug for _old, rule in rules}
        found = total.newly + total.no_longer if is_difference else total.before
        if not slugs or not slugs <= {each.rule for each in blind}:
            return True
        return bool(found) and not any(each.number for each in blind)  # else those rules have rejected them


@dataclass(slots=True)
class Options:
    """How to replay.

    any_delay: requests may be delayed as long as a queue requires, as on an event loop. max_memory: of the process, in
    MB. top: callers in the list. is_current: the first rules are those in force, so that they are compared with the
    recorded usage.
    """

    any_delay: bool = False
    max_memory: int = MAX_MEMORY
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

    Raises TooMuchMemory, and WrongFormat if no line can be read.
    """
    mapped = files.wanted.more
    callers = LoggedCallers(mapped)
    lines = iter(files)
    sample = list(islice(lines, SAMPLED))
    callers.read_users(sample)
    has_users = callers.knows_users and ("user" in files.holds or "user" in mapped)
    known = known_identities(files.holds, mapped, sample, has_users=has_users)
    rule_sets = [before] if after is None else [before, after]
    usable, left_out = [], list[Blind]()
    for each in rule_sets:
        rules, blind = without_blind_spots(each, known, files.holds)
        usable.append(rules)
        left_out += (each for each in blind if each not in left_out)
    max_delay = None if options.any_delay else "rule"
    callers.use(usable)
    replays = [Replay(rules, callers.entries, max_delay=max_delay) for rules in usable]
    run = _Run(callers, replays, watch, len(files.names))
    began = perf_counter()
    with _without_garbage_collection():
        for chunk in _chunks(chain(sample, lines)):
            run.decide(chunk)
            if memory_used() > _FULL * options.max_memory:
                raise _too_much(run.lines, options.max_memory)
            if progress:
                progress(run.lines)
    seconds = perf_counter() - began
    if files.unreadable and not run.lines:
        text = _("Nothing was replayed. Is this an access log? Name its --format.")
        raise WrongFormat("\n".join([text, *files.unreadable_in_words()]))
    slugs = {rule.slug for rule in usable[0].rules}
    lacking = run.lacking + replays[-1].lacking
    total, proxies = Counter[str](), 0
    for file, number in enumerate(run.decided):
        of_proxies = lacking.pop((file, PROXY), 0)
        if of_proxies > _PROXIES * number:
            lacking[file, "ip"] += of_proxies
            proxies += of_proxies
    for (_file, name), number in lacking.items():
        total[name] += number
    return ReplayReport(
        files,
        before,
        after,
        run.outcomes.changes(options.top),
        left_out,
        [
            *unmatched(None if after is None else usable[0], usable[-1], run.outcomes.tiers_by_rule(), run.matched),
            *unseen(usable[-1], lacking, run.decided, files.names),
        ],
        total,
        doubts(usable, files.holds, known, proxies, is_json=all(each.is_json for each in files.formats)),
        agreement(run.outcomes.counts, slugs, run.first_us, run.last_us) if options.is_current else None,
        decided=sum(run.decided),
        exempt=run.exempt,
        inline=run.inline,
        unreached=run.unreached,
        unknown_users=callers.unknown_users,
        first_us=run.first_us if run.lines else 0,
        last_us=run.last_us,
        seconds=seconds,
    )


class _Run:
    """One pass over a log."""

    def __init__(self, callers: LoggedCallers, replays: Sequence[Replay], watch: Watch | None, files: int) -> None:
        self.callers, self.replays, self.watch = callers, replays, watch
        self.find_target = target_finder(self._meet)
        self.matched = set[str]()  # slugs of the last rule set; whatever the tier of the request
        self.outcomes = OutcomeCounts()
        self.lines = self.exempt = self.inline = self.unreached = 0
        #: Requests that some entry point decides, and what they lack, by the file.
        self.decided = [0] * files
        self.lacking = Counter[tuple[int, str]]()
        self.first_us, self.last_us = 2**62, 0

    def _meet(self, call: EntryCall) -> None:
        rules = self.replays[-1].rules.match(call.facts)
        self.matched.update(rule.slug for rule in rules if rule.scope or call.reach != "scope")

    def decide(self, lines: Sequence[AccessLogLine]) -> None:
        """Decide the requests of these lines."""
        self.callers.read_users(lines)
        find_target, find_caller, add = self.find_target, self.callers.find, self.outcomes.add
        first, other, decided = self.replays[0], self.replays[-1], self.decided
        for line in lines:
            target = find_target(line[1], line[2])  # method, path
            if not target.calls:
                if target is UNREACHED:
                    self.unreached += 1
                else:
                    self.exempt += 1
                continue
            caller, file = find_caller(line), line[9]
            decided[file] += 1
            if caller.lacks:
                self.lacking.update([(file, name) for name in caller.lacks])
            if caller.is_new:
                caller.is_new = False
                self.outcomes.callers.add(caller.name)
            before: ReplayOutcome = first.decide(line, target, caller)
            after = before if other is first else other.decide(line, target, caller)
            add(line[0], target.view, caller.name, before, after)
            if target.has_inline:
                self.inline += 1
            if self.watch:
                self.watch(line, self.replays)
        self.lines += len(lines)
        self.first_us = min(self.first_us, lines[0].time_us)
        self.last_us = max(self.last_us, lines[-1].time_us)


def memory_used() -> float:
    """Return the most memory that this process has taken, in MB; 0 where Python cannot say it, as on Windows."""
    with suppress(OSError, IndexError):  # Linux. `resource` includes the process that has started this one
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1_024 / 1_000_000
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000_000 if sys.platform == "darwin" else 976)
    return 0


def _too_much(lines: int, most: int) -> TooMuchMemory:
    text = _(
        "Stopped at line %(line)s: the counters and callers to remember need more than %(most)s MB. "
        "Raise --max-memory, or replay a part of the log."
    )
    return TooMuchMemory(text % {"line": f"{lines:,}", "most": f"{most:,}"})


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
