"""Decisions while the engine is out of reach: each rule by its own failure policy."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from ..backend import usage_buffer
from ..conf import settings
from ..decision import Decision, Result, decide
from ..engine.base import Charge, Verdict
from ..engine.call import Call
from ..engine.fallback import FallbackEngine
from ..engine.usage import field_of, name_of
from ..rules import cache
from ..rules.ruleset import RuleSet
from . import events
from .charges import LimitRequest
from .io import IO, TrialIO
from .templates import owned

_local = FallbackEngine()


#: Returns the charges of the given rules.
ChargesFor = Callable[[IO, RuleSet, LimitRequest], Awaitable[Call]]


async def decide_by_policy(io: IO, request: LimitRequest, charges_for: ChargesFor, error: Exception) -> Decision | None:
    """Decide by each rule's failure policy: local, open or closed. If one `closed` rule rejects, none is charged."""
    rules = await io.look_up(cache.rules_during_outage, together=True)
    charges = owned(await charges_for(io, rules, request))
    if not charges:
        return None
    results: list[Result] = [each.result(None) for each in charges]
    if isinstance(io, TrialIO):
        io.note_outage(charges, error)
        return decide(results, rules.version, degraded=True)
    await events.send_degraded(io, _local, error)
    local = [index for index, each in enumerate(charges) if each.rule.during_outage.counts]
    if not any(result.rejects for result in results):
        verdicts = _local.check([charges[index].charge for index in local], settings.LOCAL_SHARE)
        for index, verdict in zip(local, verdicts, strict=True):
            results[index] = charges[index].result(verdict)._replace(local=True)
    _count(results, [each.charge for each in charges])
    return decide(results, rules.version, degraded=True)


def _count(results: Sequence[Result], charges: Sequence[Charge]) -> None:
    """Count what was decided here; a later call sends it to the engine."""
    verdicts = [
        Verdict(_admits(result), 0, None, 0.0, 0.0, bool(result.verdict and result.verdict.soft_exceeded), 0, charge)
        for result, charge in zip(results, charges, strict=True)
    ]
    field = field_of(verdicts, degraded=True)
    if field:
        usage_buffer.add(int(time.time()) // 60, name_of(field, verdicts))


def _admits(result: Result) -> bool:
    """Return whether a rule would allow the request if it were the only one and enforced."""
    return not result.rule.during_outage.rejects if result.verdict is None else result.verdict.allowed


def spend(charges: Sequence[Charge]) -> Sequence[Verdict]:
    """Charge more of what was charged here."""
    return _local.spend(charges)


def refund(verdicts: Iterable[Verdict]) -> None:
    """Refund these verdicts, and end their leases."""
    _local.refund(verdicts)
