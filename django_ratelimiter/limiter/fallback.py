"""Decisions while the engine is out of reach: each rule by its own failure policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..backend import server_in_words, usage_buffer
from ..conf import settings
from ..decision import Decision, Owner, Result, decide
from ..engine.base import Charge, Verdict, Version
from ..engine.call import Call
from ..engine.fallback import FallbackEngine
from ..engine.usage import field_of, name_of
from ..exceptions import EngineUnavailable
from ..signals import engine_degraded
from .io import IO, TrialIO

#: Counts in this process meanwhile.
local: FallbackEngine = FallbackEngine()


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
    _count(results, call, template.so_far)
    return decide(results, version, degraded=True)


def _count(results: Sequence[Result], charges: Sequence[Charge], so_far: str) -> None:
    """Count what was decided here; a later call sends it to the engine. so_far: of the template."""
    verdicts = [
        Verdict(result.passes, 0, None, 0.0, 0.0, bool(result.verdict and result.verdict.soft_exceeded), 0, charge)
        for result, charge in zip(results, charges, strict=True)
    ]
    if field := field_of(verdicts, so_far=so_far, degraded=True):
        usage_buffer.add(int(time.time()) // 60, name_of(field, verdicts))
