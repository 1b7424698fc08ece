"""What operators and receivers are told of decisions: log records and signals.

No record bears what tells callers apart, such as an address or a key: the partition is the digest in the names of keys.
Nor does it bear the path, for a rule may be split by a part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from threading import Lock
from typing import Any, Final

from django.dispatch import Signal
from django.http import HttpRequest

from .decision import Decision, Result
from .engine.base import Verdict
from .engine.limits import Algorithm
from .engine.resilience import LocalEngine
from .signals import engine_degraded, limit_exceeded, soft_limit_exceeded

logger = logging.getLogger("django_ratelimiter")

#: Of how many partitions a process remembers that their soft quota was told of; beyond that the oldest is forgotten.
MOST_TOLD: Final = 10_000


class Telling:
    """A step of a path: send a signal. What a receiver raises is logged by Django and goes no further."""

    __slots__ = ("_named", "_sender", "_signal")

    def __init__(self, signal: Signal, sender: type, **named: Any) -> None:
        self._signal, self._sender, self._named = signal, sender, named

    def take(self) -> None:
        self._signal.send_robust(self._sender, **self._named)

    async def atake(self) -> None:
        """Synchronous receivers are called in a thread."""
        await self._signal.asend_robust(self._sender, **self._named)


class Told:
    """Which soft quotas have been told of, until when, in microseconds of the engine's time."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}
        self._lock = Lock()

    def is_news(self, verdict: Verdict) -> bool:
        """Whether this is the first time in this window; from now on it is not."""
        limit, at_us = verdict.charge.limit, verdict.at_us
        lasts = round(verdict.reset_after * 1_000_000) if limit.algorithm == Algorithm.FIXED_WINDOW else limit.window_us
        name = verdict.charge.key + limit.tag
        with self._lock:
            if self._until.get(name, at_us) > at_us:
                return False
            self._until.pop(name, None)
            if len(self._until) >= MOST_TOLD:
                del self._until[next(iter(self._until))]
            self._until[name] = at_us + lasts
        return True


_told = Told()


def are_due(latest: Decision) -> bool:
    """Whether there is anything to tell of what one call decided."""
    return not latest.allowed or bool(soft_exceeded(latest))


def decided(request: HttpRequest, latest: Decision, decision: Decision) -> Generator[Telling, Any, None]:
    """Tell of what one call decided about a request, and of all that was decided about it."""
    if not latest.allowed:
        _log_refusal(decision)
        yield Telling(limit_exceeded, Decision, request=request, decision=decision)
    for result in soft_exceeded(latest):
        if result.verdict and _told.is_news(result.verdict):
            logger.info("The soft quota of %s is exceeded.", result.rule, extra=_extra(decision, result))
            yield Telling(soft_limit_exceeded, Result, request=request, result=result)


def degraded(local: LocalEngine, error: Exception) -> Generator[Telling, Any, None]:
    """Tell, once in a while, that requests are decided without the engine."""
    if local.log_outage(error):
        yield Telling(engine_degraded, type(error), error=error)


def soft_exceeded(decision: Decision) -> list[Result]:
    """The enforced limits whose soft quota an admitted request has exceeded."""
    exceeded = []
    for result in decision.results:
        verdict = result.verdict
        if verdict is not None and verdict.soft_exceeded and result.mode == "enforce":
            exceeded.append(result)
    return exceeded


def _log_refusal(decision: Decision) -> None:
    names = list(dict.fromkeys(str(result.rule) for result in decision.refused_by))
    logger.warning("A request was refused by %s.", ", ".join(names), extra=_extra(decision, decision.binding))


def _extra(decision: Decision, result: Result | None) -> dict[str, Any]:
    """The attributes of a record; `None` = not known, as where nothing was counted."""
    verdict = result and result.verdict
    key = verdict.charge.key if verdict else ""
    return {
        "rule": result and result.rule.slug,
        "tier": result and result.tier and result.tier.slug,
        "partition": key.removeprefix(f"{result.rule.slug}:").partition(":")[0] if result and key else None,
        "version": decision.version.number,
    }
