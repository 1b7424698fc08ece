"""From verdicts to the answer for the request. Imports no Django."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .engine.base import Verdict, Version
from .engine.limits import Limit
from .rules.ruleset import NO_VERSION, RuleRecord, TierRecord


class Result(NamedTuple):
    """One limit of one rule that the request met.

    verdict: `None` where nothing was counted, because the engine was out of reach and the rule's failure policy
    decided. mode: shadow or enforce.
    """

    rule: RuleRecord
    tier: TierRecord | None
    limit: Limit
    verdict: Verdict | None
    mode: str

    @property
    def refuses(self) -> bool:
        """Whether this result refuses the request."""
        if self.mode != "enforce":
            return False
        return self.rule.failure_policy == "closed" if self.verdict is None else not self.verdict.allowed


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for a request.

    degraded: taken without the engine, by each rule's failure policy. unavailable: refused because such a policy is
    `closed`, which is an outage (503) and not the client's doing (429). delay: seconds to hold an admitted request.
    binding: the result that refused (of several, the one to wait longest for), else the one nearest exhaustion;
    `None` where no enforced rule was met. results: by ascending priority of their rules, shadow ones included.
    """

    allowed: bool
    degraded: bool
    delay: float
    binding: Result | None
    results: tuple[Result, ...]
    version: Version

    @property
    def unavailable(self) -> bool:
        """Whether a `closed` failure policy refused the request."""
        return any(result.verdict is None and result.refuses for result in self.results)

    @property
    def refused_by(self) -> tuple[Result, ...]:
        """The results that refuse the request."""
        return tuple(result for result in self.results if result.refuses)


#: For a request that met no rule, or met the limiter while it was off.
NOTHING_TO_DECIDE = Decision(True, False, 0.0, None, (), NO_VERSION)


def decide(results: Sequence[Result], version: Version, *, degraded: bool = False) -> Decision:
    """One answer from the results of all rules that the request met."""
    enforced = [result for result in results if result.mode == "enforce"]
    return Decision(
        allowed=not any(result.refuses for result in enforced),
        degraded=degraded,
        delay=max((result.verdict.delay for result in enforced if result.verdict), default=0.0),
        binding=min(enforced, key=_tightness, default=None),
        results=tuple(results),
        version=version,
    )


def _tightness(result: Result) -> tuple[int, float]:
    """Sorts the binding result first: what never passes, then the longest wait, then the smallest share left."""
    verdict = result.verdict
    if verdict is None:
        return (0 if result.refuses else 3), 0.0
    if not verdict.allowed:
        return (0, 0.0) if verdict.retry_after is None else (1, -verdict.retry_after)
    return 2, verdict.remaining / result.limit.capacity
