"""Estimates the memory of a replay from a sample of its logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp
from typing import Final, NamedTuple

from ...rules.records import RuleRecord
from ...rules.ruleset import RuleSet
from ..callers import LoggedCaller, LoggedCallers
from ..logs.line import AccessLogLine
from ..logs.reading import LogFiles
from ..targets import LoggedTarget, target_finder
from .blocks import Between, LogBlocks, distinct, read_blocks

#: Bytes of memory of a counter, including its name, and of a replay without counters; measured with
#: `benchmarks/replay.py`.
BYTES_PER_COUNTER: Final = 530
BYTES_AT_FIRST: Final = 120_000_000

#: A group of counters: the number of the rule set, a rule, and the microseconds of a window.
_Window = tuple[int, str, int]


class Expected(NamedTuple):
    """The expected size of a replay. callers: in the logs. bytes: of memory. is_exact: all lines were read."""

    callers: Between
    bytes: Between
    is_exact: bool


def expected_memory(files: LogFiles, rule_sets: Sequence[RuleSet], identities: Sequence[str]) -> Expected | None:
    """Return what a replay of these logs with these rule sets will need; `None` = not known in advance.

    identities: see `LoggedCallers`. Takes a second or two, and at most `MAX_BLOCKS` queries for users.
    """
    blocks = read_blocks(files)
    if blocks is None:
        return None
    seen = _Seen(rule_sets, identities)
    for block in blocks.blocks:
        seen.add(block)
    callers = distinct(seen.callers, blocks)
    counters = [_at_one_time(distinct(found, blocks), window[2], blocks) for window, found in seen.windows.items()]
    low, high = (BYTES_AT_FIRST + BYTES_PER_COUNTER * sum(each[end] for each in counters) for end in (0, 1))
    return Expected(callers, Between(low, high), blocks.is_whole)


class _Seen:
    """The callers in blocks of lines: all of them, and those with a counter for each window."""

    def __init__(self, rule_sets: Sequence[RuleSet], identities: Sequence[str]) -> None:
        self._rule_sets = rule_sets
        self._callers = LoggedCallers([rule_sets[0], rule_sets[-1]], identities)
        self._find_target = target_finder()
        self.callers: list[set[str]] = []
        self.windows: defaultdict[_Window, list[set[str]]] = defaultdict(list)

    def add(self, block: Sequence[AccessLogLine]) -> None:
        """Add the callers of a block."""
        self._callers.read_users(block)
        callers, windows = set[str](), defaultdict[_Window, set[str]](set)
        for line in block:
            target = self._find_target(line.method, line.path)
            if target.doors:
                caller = self._callers.find(line)
                callers.add(caller.name)
                for window in self._windows(target, caller):
                    windows[window].add(caller.name)
        self.callers.append(callers)
        for window, found in windows.items():
            self.windows[window].append(found)

    def _windows(self, target: LoggedTarget, caller: LoggedCaller) -> Iterator[_Window]:
        """Yield the windows in which the caller of a request has its own counters."""
        for number, rules in enumerate(self._rule_sets):
            tier = caller.kind.entitlements[number].tier
            for rule in _matched(rules, target):
                if _tells_apart(rule, caller):
                    for record in rule.limits.get(tier.slug if tier else None, rule.limits.get(None, ())):
                        yield number, rule.slug, record.limit.window_us


def _matched(rules: RuleSet, target: LoggedTarget) -> list[RuleRecord]:
    """Return the rules that a target's entry points decide, each once."""
    found = [rule for door in target.doors for rule in rules.match(target.facts._replace(scope=door.scope))]
    return found if len(target.doors) == 1 else [*{rule.slug: rule for rule in found}.values()]


def _tells_apart(rule: RuleRecord, caller: LoggedCaller) -> bool:
    """Return whether this caller has its own counters."""
    names = [name for name in rule.partition_by if not name.startswith("path:")]
    return bool(names) and (rule.missing_partition == "ip" or all(caller.part(name) is not None for name in names))


def _at_one_time(callers: Between, window_us: int, blocks: LogBlocks) -> Between:
    """Return how many of these callers have a counter at the same time: those in one window.

    It is assumed that the requests of a caller are spread over the whole log.
    """
    part = window_us / 1_000_000 / blocks.seconds if blocks.seconds else 1.0
    if part >= 1:
        return callers
    lines = blocks.lines * part
    low, high = (round(each * (1 - exp(-lines / each))) if each else 0 for each in callers)
    return Between(low, high)
