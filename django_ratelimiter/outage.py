"""Decisions while the engine is out of reach: each rule by its own failure policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import notices
from .conf import settings
from .decision import Decision, Result, decide
from .engine.base import Charge, Verdict
from .engine.resilience import LocalEngine
from .planning import Planning, Question
from .rules import cache
from .waiting import Lookup, Path

_local = LocalEngine()


def deciding(question: Question, error: Exception) -> Path[Decision | None]:
    """Each rule by its failure policy: local, open or closed. One `closed` rule refuses, and nothing is spent."""
    rules = yield Lookup(cache.renewed_by_age, together=True)
    planned = yield Planning(rules, question)
    if not planned:
        return None
    yield from notices.degraded(_local, error)
    results: list[Result] = [each.result(None) for each in planned]
    local = [index for index, each in enumerate(planned) if each.rule.failure_policy == "local"]
    if not any(result.refuses for result in results):
        verdicts = _local.check([planned[index].charge for index in local], settings.LOCAL_SHARE)
        for index, verdict in zip(local, verdicts, strict=True):
            results[index] = planned[index].result(verdict)._replace(local=True)
    return decide(results, rules.version, degraded=True)


def spend(charges: Sequence[Charge]) -> list[Verdict]:
    """Spend more of what was charged here, as these charges stand."""
    return _local.spend(charges)


def refund(verdicts: Iterable[Verdict]) -> None:
    """Give back what these verdicts spent here, leases included."""
    _local.refund(verdicts)
