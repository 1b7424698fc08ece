"""A log as the traffic of rules: the times of each caller's requests, and what its lines do not show."""

from __future__ import annotations

import gc
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...conf import is_secret
from ...engine.partition_stats import is_sampled
from ...identity import digest, partition
from ...limiter.templates import MaxDelay
from ...rules.records import RuleRecord
from ...rules.ruleset import RuleSet
from ...values.terminal import visible
from ..answer import MOST, SHORT_US, Blind, BlindKind, RuleForecast, blind_by_nature, unseen_tiers
from ..code import asking_in_code, costs_of_scope
from ..evaluate import MAX_CALLERS, SAMPLED_ONE_IN, Evaluator, Kind, Rejected, Requests, Tally, evaluators
from .formats import AccessLogLine, WrongFormat
from .reading import LogFiles
from .requests import UNREACHED, LoggedCaller, LoggedCallers, Plan, target_finder

#: The memory that the process may take, in MB, unless the user says otherwise.
MAX_MEMORY: Final = 1_000

#: At this share of it, one caller in sixteen is kept; at the next, reading ends.
_MUCH, _FULL = 0.8, 0.95

#: Lines that are read at once, with one query for their users.
_CHUNK: Final = 2_000


class Share(NamedTuple):
    """What the requests of a caller count as, with one plan. partition: `None` = they are not counted.

    kinds: the places of their kind if the response is a success, and if it is a failure. lacks: what is not known.
    """

    partition: str | None
    kinds: tuple[int, int] = (0, 0)
    lacks: tuple[str, ...] = ()


#: What lines lack that have no duration.
DURATION: Final = ("duration",)


class RuleTraffic:
    """The requests that rules match which have the same conditions and count by the same values.

    one_in: one caller in so many is kept. matched: requests by file. lacking: of them, by the file and by what is not
    known. requests: by the place of their kind in `kinds`. unsure: responses that are failures, or not.
    """

    def __init__(self, rule: RuleRecord) -> None:
        self.rule, self.one_in = rule, 1
        #: Whether rules need more of their requests than times: the status, the duration, their number among all.
        self.by_status = self.by_duration = self.by_number = False
        self.kinds: list[Kind] = []
        self.matched, self.requests = Counter[int](), Counter[int]()
        self.lacking: Counter[tuple[int, tuple[str, ...]]] = Counter[tuple[int, tuple[str, ...]]]()
        self.unsure: int = 0
        self._places: dict[Kind, int] = {}
        self._rows: dict[str, array[int]] = {}

    def add(self, line: AccessLogLine, caller: LoggedCaller, plan: Plan, number: int) -> None:
        """Add a request."""
        share = caller.shares.get(plan) or caller.shares.setdefault(plan, self._share(caller, plan))
        file, kind = line[8], share.kinds[0]
        self.matched[file] += 1
        if share.lacks:
            self.lacking[file, share.lacks] += 1
        if share.partition is None:
            return
        if self.by_status:
            failed = line[5] >= 400 and line[5] != 429
            kind = share.kinds[failed]
            self.unsure += not failed
        self.requests[kind] += 1
        row = self._rows.get(share.partition)
        if row is None:
            if self.one_in > 1 and not is_sampled(digest(share.partition)):
                return
            row = self._rows[share.partition] = array("q")
        row.append(line[0])
        row.append(kind)
        if self.by_duration:
            row.append(line[6])
            if line[6] < 0:
                self.lacking[file, DURATION] += 1
        if self.by_number:
            row.append(number)

    def keep_some(self) -> None:
        """Keep one caller in sixteen from now on; if all share one counter, it is kept."""
        if not self.rule.is_shared:
            self.one_in = SAMPLED_ONE_IN
            self._rows = {name: row for name, row in self._rows.items() if is_sampled(digest(name))}

    def callers(self) -> Iterator[tuple[str, Requests]]:
        """Yield the callers that are kept, with their requests, the earliest first, in the order of the lines."""
        step = 2 + self.by_duration + self.by_number
        for name, row in self._rows.items():
            times = row[0::step].tolist()
            columns = [times, *(row[place::step].tolist() for place in range(1, step))]
            if times != sorted(times):
                order = sorted(range(len(times)), key=times.__getitem__)
                columns = [[column[place] for place in order] for column in columns]
            places = columns[1]
            kinds = [self.kinds[place] for place in (places if len({*places}) > 1 else places[:1])]
            durations, numbers = columns[2] if self.by_duration else (), columns[-1] if self.by_number else ()
            yield name, Requests(columns[0], kinds, (), durations, numbers)

    def _share(self, caller: LoggedCaller, plan: Plan) -> Share:
        rule, names = self.rule, self.rule.partition_by
        value = partition(caller, names)
        lacks = [name for name in names if caller.value(name) is None and not name.startswith("path:")]
        if rule.depends_on_tier:
            lacks += [name for name in caller.lacks if name != "ip"]
        is_missing = value is None and rule.missing_partition == "deny"
        if value is None and rule.missing_partition == "ip":
            value = partition(caller, ("ip",))
        kinds = [Kind(caller.entitlements, plan.cost, failed, is_missing) for failed in (False, True)]
        places = self._place(kinds[0]), self._place(kinds[1]) if self.by_status else 0
        return Share("" if is_missing else value, places, tuple(dict.fromkeys(lacks)))

    def _place(self, kind: Kind) -> int:
        place = self._places.setdefault(kind, len(self.kinds))
        if place == len(self.kinds):
            self.kinds.append(kind)
        return place


class LogTraffic:
    """The traffic of some rules in logs, which is read at once.

    lines, decided, unreached: all that were read, those of requests that some of these rules match, and of what never
    reaches Django. Raises WrongFormat if no line can be read, or if the memory is not enough.
    """

    def __init__(
        self,
        files: LogFiles,
        rule_sets: Sequence[RuleSet],
        changes: Sequence[tuple[RuleRecord | None, RuleRecord]],
        max_memory: int = MAX_MEMORY,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.files = files
        self.decided = self.unreached = self.lines = 0
        self.first_us, self.last_us, self._is_thinned = 2**62, 0, False
        self._of: dict[tuple[Any, ...], RuleTraffic] = {}
        for pair in changes:
            active = [rule for rule in pair if rule and not rule.is_off]
            for rule in active:
                traffic = self._of.setdefault(_conditions(rule), RuleTraffic(rule))
                traffic.by_status |= rule.charge_when != "any"
                traffic.by_duration |= _holds_leases(rule)
                traffic.by_number |= len({*map(_conditions, active)}) > 1
        self._traffic = [*self._of.values()]
        self._callers = LoggedCallers([*files.wanted.identities.values()], rule_sets)
        was_enabled = gc.isenabled()
        gc.disable()  # reading makes no cycles, and the collector would search all that was read
        try:
            self._read(max_memory, progress)
        finally:
            if was_enabled:
                gc.enable()

    def forecast(
        self,
        before: RuleRecord | None,
        after: RuleRecord,
        max_delay: MaxDelay = "rule",
        *,
        is_change: bool = True,
        top: int = MAX_CALLERS,
    ) -> RuleForecast:
        """Return what a changed rule would have done. max_delay: see `RuleTemplates`. top: the number of callers."""
        earlier, changed = evaluators(before, after, max_delay)
        own = self._of[_conditions(after)]
        other = self._of[_conditions(earlier.rule)] if earlier else own
        tally, rejected_before = Tally((earlier, changed), scenarios=1, most=top), None
        if earlier and other is not own:
            rejected_before = _rejected_elsewhere(other, earlier, self.lines)
        is_secret_value = any(map(is_secret, after.partition_by))
        for who, requests in own.callers():
            tally.add(digest(who) if is_secret_value else who, [requests], rejected_before)
        blind = [*self._blind(before, after, own)]
        if other is not own and own.one_in > 1:
            text = _("what it applies to or counts by changes, and the log does not fit in memory")
            blind.append(Blind("others", text))
        notes = []
        if own.one_in > 1:
            notes = [_("Figures are ranges, because only one caller in %s fits in memory.") % own.one_in]
        return RuleForecast(
            after.slug, before, after, tally, own.requests.total(), blind, own.one_in, notes, is_change=is_change
        )

    @cached_property
    def _asking(self) -> str:
        return ", ".join(asking_in_code()[:3])

    def _read(self, max_memory: int, progress: Callable[[int], None] | None) -> None:
        find_target, find_caller = target_finder([each.rule for each in self._traffic]), self._callers.find
        lines, traffic = iter(self.files), self._traffic
        by_path = any(name.startswith("path:") for each in traffic for name in each.rule.partition_by)
        while chunk := list(islice(lines, _CHUNK)):
            self._callers.read_users(chunk)
            for number, line in enumerate(chunk, self.lines):
                target = find_target(line[1], line[2])  # method, path
                if not target.plans:
                    self.unreached += target is UNREACHED
                    continue
                caller = find_caller(line)
                if caller.is_listed:
                    continue
                self.decided += 1
                if by_path and target.captured:
                    caller = caller.at(target.captured)
                for plan in target.plans:
                    traffic[plan.place].add(line, caller, plan, number)
            times = [line[0] for line in chunk]
            self.first_us, self.last_us = min(self.first_us, *times), max(self.last_us, *times)
            self.lines += len(chunk)
            if memory_used() > _MUCH * max_memory:
                self._save_memory(max_memory)
            if progress:
                progress(self.lines)
        self._callers.forget()
        if not self.lines:
            shown = "\n".join(self._shown_lines())
            raise WrongFormat(_("No line can be read. Is this an access log? Name its --format.") + f"\n{shown}")

    def _save_memory(self, max_memory: int) -> None:
        if not self._is_thinned:
            self._is_thinned = True
            for each in self._traffic:
                each.keep_some()
            self._callers.forget()
        elif memory_used() > _FULL * max_memory:
            text = _("Stopped at line %(line)s: even one caller in sixteen needs more than %(most)s MB (--max-memory).")
            raise WrongFormat(text % {"line": f"{self.lines:,}", "most": f"{max_memory:,}"})

    def _blind(self, before: RuleRecord | None, after: RuleRecord, traffic: RuleTraffic) -> Iterator[Blind]:
        for each in blind_by_nature(after, costs_of_scope(after.scope)[1], has_outcomes=True):
            if each.kind != "outcome" or traffic.unsure or not traffic.requests:
                yield each
        if after.scope and self._asking:
            yield Blind("scope", _("a log does not show which scopes code asks for: %s") % self._asking)
        yield from self._unseen_lines(after, traffic)
        met = {traffic.kinds[place].tier for place in traffic.requests}
        if not traffic.matched:
            yield Blind("unmatched", _("no request of the log matches it"))
        elif met:
            yield from unseen_tiers(before, after, met)
        windows = [each.limit.window_us for several in after.limits.values() for each in several]
        has_fractions = all(self.files.files[file].times.has_fractions for file in traffic.matched)
        if windows and min(windows) < SHORT_US and not has_fractions:
            yield Blind("resolution", _("the times of the log are whole seconds, and a window is under 30 seconds"))

    def _unseen_lines(self, rule: RuleRecord, traffic: RuleTraffic) -> Iterator[Blind]:
        unread, unknown = _("lines cannot be read"), _("requests have no known %s")
        for file, log in enumerate(self.files.files):
            of_file, matched = f" ({log.name})" if len(self.files.files) > 1 else "", traffic.matched[file]
            if not log.format:
                yield Blind("unreadable", _("%s is empty") % log.name)
            yield from _counted("unreadable", log.unread, log.unread + log.read, unread + of_file)
            numbers = {lacks: number for (place, lacks), number in traffic.lacking.items() if place == file}
            durations = numbers.pop(DURATION, 0) * _holds_leases(rule)
            yield from _counted("duration", durations, matched, unknown % "duration" + of_file)
            names = ", ".join(sorted({name for several in numbers for name in several}))
            for found in _counted("value", sum(numbers.values()), matched, unknown % names + of_file):
                if not (found.is_countable and rule.missing_partition == "deny"):
                    yield found

    def _shown_lines(self) -> Iterator[str]:
        yield from (visible(f"  {name}:{line}: {why}: {told}") for name, line, why, told in self.files.shown)

    @property
    def unread(self) -> int:
        """The number of lines that cannot be read."""
        return sum(each.unread for each in self.files.files)

    def notes(self) -> Iterator[str]:
        """Yield, as text, what readers must know of the logs, whatever the rule."""
        if unread := self.unread:
            yield ngettext("%s line cannot be read:", "%s lines cannot be read; the first:", unread) % f"{unread:,}"
            yield from self._shown_lines()
            yield _("If they are no requests to Django, leave them out, as with `grep -v`.")
        if any(each.times.lacks_zones for each in self.files.files):
            yield _("The log has no time zone; its times are read in that of the project, or of --timezone.")
        if self.unreached:
            text = _("%s lines are of requests that never reach Django: PRI, CONNECT, OPTIONS *, or broken.")
            yield text % f"{self.unreached:,}"


def _holds_leases(rule: RuleRecord) -> bool:
    return any(each.limit.holds_leases for several in rule.limits.values() for each in several)


def _conditions(rule: RuleRecord) -> tuple[Any, ...]:
    """Return what decides which requests a rule matches, and what distinguishes their callers."""
    return (
        *(rule.methods, rule.path, rule.path_kind, rule.view_name, rule.scope),
        *(rule.partition_by, rule.missing_partition, rule.depends_on_tier),
    )


def _counted(kind: BlindKind, number: int, lines: int, text: str) -> Iterator[Blind]:
    """Yield that so many of these lines are not seen, if any; if they are most, the others say nothing."""
    if number:
        told = _("%(number)s of %(lines)s %(what)s") % {"number": f"{number:,}", "lines": f"{lines:,}", "what": text}
        yield Blind(kind, told, 0 if number >= MOST * lines else number)


def memory_used() -> float:
    """Return the most memory that this process has taken, in MB; 0 where Python cannot say it, as on Windows."""
    with suppress(OSError, IndexError):  # Linux. `resource` includes the process that has started this one
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1_024 / 1_000_000
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000_000 if sys.platform == "darwin" else 976)
    return 0


def _rejected_elsewhere(traffic: RuleTraffic, rule: Evaluator, lines: int) -> Callable[[Requests], Rejected]:
    """Return what finds the requests that a rule rejects which counts by other values, by their numbers."""
    marks = bytearray(lines)
    for _who, requests in traffic.callers():
        for place in rule.rejected(requests):
            marks[requests.numbers[place]] = 1
    return lambda requests: {place: 1 for place, number in enumerate(requests.numbers) if marks[number]}
