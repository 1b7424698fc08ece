"""Replay: the requests of a log, decided on the request path, with the times of the log."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import Any

from ...decision import NOTHING_TO_DECIDE, Decision
from ...engine.coroutines import run_sync
from ...engine.memory import MemoryEngine
from ...limiter.charges import LimitRequest
from ...limiter.io import ClockIO
from ...limiter.path import decide
from ...limiter.refunds import refund_results, release, unearned
from ...limiter.templates import MaxDelay
from ...rules.ruleset import RuleSet
from ...values.access import AccessList
from .blind_spots import DURATION, STATUS
from .callers import LoggedCaller
from .line import AccessLogLine
from .outcomes import ReplayOutcome, outcome_of
from .targets import LoggedTarget


class _Request:
    """What the request path needs of the request on a line: a place for the decision."""

    ratelimit: Decision


class Replay:
    """One rule set, and its counters after the last decided line.

    max_delay: see `RuleTemplates`. decision: the last one, as its entry point would return it. lacking: lines, by
    their file, that lack the status or the duration that a decision needs.
    """

    def __init__(self, rules: RuleSet, entries: AccessList, *, max_delay: MaxDelay = "rule") -> None:
        self.rules, self.engine = rules, MemoryEngine(counts_usage=False)
        self.decision = NOTHING_TO_DECIDE
        self.lacking = Counter[tuple[int, str]]()
        self._io = ClockIO(rules, entries, self.engine)
        self._max_delay = max_delay
        self._by_path = any(name.startswith("path:") for rule in rules.rules for name in rule.partition_by)
        self._http: Any = _Request()
        self._outcomes: dict[Any, ReplayOutcome] = {}
        self._in_flight: list[tuple[int, int, Decision]] = []

    def decide(self, line: AccessLogLine, target: LoggedTarget, caller: LoggedCaller) -> ReplayOutcome:
        """Decide a request and charge it; then make the refunds for its response in the log."""
        io, http = self._io, self._http
        io.now_us = now = line[0]
        while self._in_flight and self._in_flight[0][0] <= now:
            run_sync(release(io, heappop(self._in_flight)[2]))
        if self._by_path and target.captured:
            caller = caller.at(target.captured)
        decision, waited = NOTHING_TO_DECIDE, 0.0
        for facts, reach, is_early in target.calls:
            who = (caller.early or caller) if is_early else caller
            asked = LimitRequest(facts, http, who, None, self._max_delay, decision, is_early, (), reach)
            decision = run_sync(decide(io, asked))
            if not decision.allowed:
                break
            waited += decision.delay
        self.decision = decision
        if decision.has_consequences and decision.results:
            self._end(decision, line, waited)
        return self._outcome(decision)

    def _end(self, decision: Decision, line: AccessLogLine, waited: float) -> None:
        """Make the refunds for the response, and record when leases end."""
        if not line.status:
            self.lacking[line.file, STATUS] += 1
        if back := unearned(decision, failed=line.status >= 400 and line.status != 429):
            run_sync(refund_results(self._io, back))
        if decision.leases:
            self.lacking[line.file, DURATION] += line.duration_us < 0
            until = line.time_us + round(waited * 1_000_000) + max(line.duration_us, 0)
            heappush(self._in_flight, (until, id(decision), decision))

    def _outcome(self, decision: Decision) -> ReplayOutcome:
        """Return the outcome of a decision; equal ones are one object."""
        outcome = decision.outcome
        found = self._outcomes.get(outcome)
        if found is None:
            found = self._outcomes[outcome] = outcome_of(decision)
        return found
