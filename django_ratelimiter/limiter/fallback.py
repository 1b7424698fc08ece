"""Decisions while the engine is out of reach: each rule by its own failure policy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..backend import server_in_words, usage_buffer
from ..conf import settings
from ..decision import Decision, Owner, Result, decide
from ..engine.base import Verdict, Version
from ..engine.call import Call
from ..engine.fallback import FallbackEngine
from ..engine.partition_stats import MINUTE_US
from ..engine.redis.connections.faults import may_have_been_run
from ..engine.usage import Extra, extras_after, extras_of, field_of, label_in, name_of, refunded
from ..exceptions import EngineUnavailable
from ..rules.inline import label_of
from ..signals import engine_degraded
from .io import IO, TrialIO

#: Counts in this process meanwhile.
local: FallbackEngine = FallbackEngine()


def count_settled(call: Call) -> None:
    """Count the units that this call has settled in this process."""
    for extra in extras_of(call):
        usage_buffer.add(time.time_ns() // 1_000 // MINUTE_US, extra.field, extra.units)


def labelled(results: Iterable[Result]) -> list[Verdict]:
    """Return the verdicts of these results with the labels that they are counted under."""
    found = [(each.verdict, label_of(each.rule, each.tier)) for each in results if each.verdict]
    return [replace(each, charge=each.charge._replace(usage=label, usual_cost=1)) for each, label in found]


def refund(results: Sequence[Result], *, is_counted: bool) -> None:
    """Refund what this process has charged itself. is_counted: usage counts the units."""
    verdicts = [result.verdict for result in results if result.verdict]
    if is_counted:
        for entry in refunded(labelled(results), time.time_ns() // 1_000 // MINUTE_US):
            usage_buffer.add(*entry)
    local.refund(verdicts)


async def decide_by_policy(io: IO, call: Call, version: Version, error: Exception) -> Decision | None:
    """Decide by each rule's failure policy: local, open or closed. If one `closed` rule rejects, none is charged.

    version: of the rules. error: why they cannot be decided otherwise.
    """
    template: Any = call.template
    owners: Sequence[Owner] = template.owners
    if not owners:
        return None
    results = [owner.result(None) for owner in owners]
    if isinstance(io, TrialIO):
        io.note_outage(call, error)
        return decide(results, version, degraded=True)
    if local.log_outage(error, server_in_words if isinstance(error, EngineUnavailable) else None):  # at intervals
        await io.send(engine_degraded, type(error), error=error)
    counted = [place for place, owner in enumerate(owners) if owner.rule.during_outage.counts]
    if not any(result.rejects for result in results):
        verdicts = local.check_share([call[place] for place in counted], settings.LOCAL_SHARE)
        for place, verdict in zip(counted, verdicts, strict=True):
            results[place] = owners[place].result(verdict, local=True)
    _count(results, call, error)
    return decide(results, version, degraded=True)


def _count(results: Sequence[Result], call: Call, error: Exception) -> None:
    """Count what was decided here; a later call sends it to the engine.

    What the engine has counted of the request stays if the call that failed may have corrected it: then it is counted
    once more.
    """
    now_us = time.time_ns() // 1_000
    verdicts = [
        Verdict(result.passes, 0, None, 0.0, 0.0, bool(result.verdict and result.verdict.soft_exceeded), now_us, charge)
        for result, charge in zip(results, call, strict=True)
    ]
    again = [each for each in call.so_far if each.letter.islower() and may_have_been_run(error)]
    so_far = [each for each in call.so_far if each not in again]
    is_rejected = any(result.rejects for result in results)
    if field := field_of(verdicts, is_rejected=is_rejected, so_far=so_far, again=again, degraded=True):
        usage_buffer.add(now_us // MINUTE_US, name_of(field, verdicts))
    extras = [Extra((), label_in(each.line), each.units) for each in again if each.units and not is_rejected]
    for extra in (*extras_after(call, verdicts, is_rejected=is_rejected, so_far=so_far), *extras):
        usage_buffer.add(now_us // MINUTE_US, extra.field, extra.units)
