"""Decisions while the engine is out of reach: each rule by its own failure policy."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..backend import usage_buffer
from ..conf import settings
from ..decision import Decision, Result, decide
from ..engine.base import Charge, Verdict, Version
from ..engine.call import Call
from ..engine.fallback import FallbackEngine
from ..engine.usage import field_of, name_of
from . import events
from .io import IO, TrialIO
from .templates import owned

#: Counts in this process meanwhile.
local = FallbackEngine()


async def decide_by_policy(io: IO, call: Call, version: Version, error: Exception) -> Decision | None:
    """Decide by each rule's failure policy: local, open or closed. If one `closed` rule rejects, none is charged.

    version: of the rules. error: why they cannot be decided otherwise.
    """
    charges = owned(call)
    if not charges:
        return None
    results: list[Result] = [each.result(None) for each in charges]
    if isinstance(io, TrialIO):
        io.note_outage(charges, error)
        return decide(results, version, degraded=True)
    await events.send_degraded(io, local, error)
    counted = [index for index, each in enumerate(charges) if each.rule.during_outage.counts]
    if not any(result.rejects for result in results):
        verdicts = local.check([charges[index].charge for index in counted], settings.LOCAL_SHARE)
        for index, verdict in zip(counted, verdicts, strict=True):
            results[index] = charges[index].result(verdict)._replace(local=True)
    _count(results, [each.charge for each in charges], call.template.so_far)
    return decide(results, version, degraded=True)


def _count(results: Sequence[Result], charges: Sequence[Charge], so_far: str) -> None:
    """Count what was decided here; a later call sends it to the engine. so_far: of the template."""
    verdicts = [
        Verdict(result.passes, 0, None, 0.0, 0.0, bool(result.verdict and result.verdict.soft_exceeded), 0, charge)
        for result, charge in zip(results, charges, strict=True)
    ]
    if field := field_of(verdicts, so_far=so_far, degraded=True):
        usage_buffer.add(int(time.time()) // 60, name_of(field, verdicts))
