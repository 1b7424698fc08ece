"""Log records and signals about decisions.

No record contains a value that identifies a caller, such as an address or a key: the partition is logged as its alias.
Only a customer has its label there, which the project chooses.
The path is not logged either, because a rule can be split by a part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from time import time_ns
from typing import Any, Final

from django.http import HttpRequest

from ..decision import Decision, Rejection, Result
from ..engine.base import Charge, Verdict
from ..engine.call import Call
from ..engine.limits import Limit
from ..engine.locks import freed_by_fork
from ..engine.registry import SIMPLEST
from ..identity import Identity, denied_as, untrusted
from ..logs import logger
from ..signals import limit_exceeded, quota_reached, soft_limit_exceeded
from ..values.access import AccessRecord
from ..values.digests import whole
from .io import IO

MESSAGE: Final = "A request was rejected by %s.%s"

#: For how many partitions a process remembers what it has told, the oldest are dropped.
MAX_NOTIFIED: Final = 10_000

#: Called with the decision of one call, its duration in seconds, and the results of earlier calls for the request; such
#: as the Prometheus metrics. `None` = nobody.
observer: Callable[[Decision, float, Sequence[Result]], None] | None = None


def tell_observer(decision: Decision, seconds: float, earlier: Sequence[Result]) -> None:
    """Call the observer. Its exceptions do not affect the request.

    It gets a decision of its own: to read results drops the answer, of which names and response fields are made.
    """
    if observer is not None:
        try:
            answer = decision.answer
            observer(decision if answer is None else Decision.of(answer, decision.version), seconds, earlier)
        except Exception:  # such as a full disk
            logger.exception("A decision could not be measured.")


class NotificationDedup:
    """What was told already, and until when that counts, in microseconds."""

    def __init__(self) -> None:
        self._until: dict[str, int] = {}
        self._lock = freed_by_fork(Lock())

    def is_first_in_window(self, verdict: Verdict, what: str = "") -> bool:
        """Return whether this is the first call in this window. what: distinguishes several events of one quota."""
        limit = verdict.charge.limit
        lasts = round(verdict.reset_after * 1_000_000) if limit.traits.resets_at_end else limit.window_us
        return self.is_first(verdict.charge.key + limit.tag + what, verdict.at_us, lasts)

    def is_first(self, name: str, at_us: int, lasts: int) -> bool:
        """Return whether this is the first call for a name; the next one counts as the first after so long."""
        with self._lock:
            if self._until.get(name, at_us) > at_us:
                return False
            self._until.pop(name, None)
            if len(self._until) >= MAX_NOTIFIED:
                del self._until[next(iter(self._until))]
            self._until[name] = at_us + lasts
        return True


_soft_exceeded = NotificationDedup()
_reached = NotificationDedup()
_denied = NotificationDedup()


async def send_events(io: IO, request: HttpRequest, who: Identity | None, latest: Decision, decision: Decision) -> None:
    """Log and signal what one call decided for a request. decision: merged from all calls for it."""
    if not latest.allowed:
        if logger.isEnabledFor(logging.WARNING):
            _log_rejection(decision, who)
        proxy = None if latest.degraded else untrusted.examine(request, latest.rejection.by)
        if proxy is not None:
            await io.send(untrusted.proxy_found, Decision, proxy=proxy)
        if limit_exceeded.receivers:
            await io.send(limit_exceeded, Decision, request=request, decision=decision)
    for result in latest.soft_exceeded if latest.has_consequences else ():
        if result.verdict and _soft_exceeded.is_first_in_window(result.verdict):
            extra = _extra(decision, result, who)
            logger.info("The soft quota of %s is exceeded.", result.rule, extra=extra)
            if soft_limit_exceeded.receivers and await _is_first_of_all(io, result, "soft"):
                await io.send(soft_limit_exceeded, Result, request=request, result=result)
    if quota_reached.receivers:
        await send_reached(io, request, latest.results)


async def send_reached(io: IO, request: HttpRequest, results: Iterable[Result]) -> None:
    """Signal the quotas that are used up, or nearly, once in a window."""
    for result in results:
        verdict = result.verdict
        if verdict is None or verdict.remaining * 5 > result.limit.capacity or result.mode != "enforce" or result.local:
            continue  # less is used, or it is not enforced, or only estimated
        percent = 80 if verdict.remaining else 100
        events = ("100", "80") if percent == 100 else ("80",)  # after 100, 80 is not sent
        is_first, *_ = [_reached.is_first_in_window(verdict, event) for event in events]
        if is_first and await _is_first_of_all(io, result, *events):
            await io.send(quota_reached, Result, request=request, result=result, percent=percent)


def log_denied(identity: Identity, record: AccessRecord) -> None:
    """Log that an access entry denies a caller, once an hour in this process."""
    if (found := denied_as(identity, record)) is None:
        return
    by, who = found
    if _denied.is_first(f"{record.pk} {who}", time_ns() // 1_000, 3_600_000_000):
        extra = {"entry": record.pk, "identity": "|".join(by), "partition": whole(who)}
        extra["customer"] = identity.customer_label
        logger.warning("A caller was denied by access entry %s.", record.pk, extra=extra)


async def _is_first_of_all(io: IO, result: Result, *events: str) -> bool:
    """Return whether no process has noted the first of these events of a quota in this window. All are noted then.

    Each is a counter of the engine with a quota of 1, which only one process gets. Without the engine, each is first.
    """
    verdict: Any = result.verdict
    charge, limit, end = verdict.charge, result.limit, ""
    if limit.traits.resets_at_end:  # by the reply; a process that counts by itself knows it to some microseconds
        end = f":{round(verdict.at_us / 1_000 + verdict.reset_after * 1_000)}"
    once = Limit(1, limit.window_us / 1_000_000, SIMPLEST, anchor="first_request")
    notices = [
        Charge(f"{charge.key}{limit.tag}:{event}{end}", once, gating=False, partition=charge.partition)
        for event in events
    ]
    try:
        return (await io.check(Call.of(notices)))[0].allowed
    except Exception:
        return True


def _log_rejection(decision: Decision, identity: Identity | None) -> None:
    """Log a rejection. Not by `Logger.warning`, which would search the stack for the line that logs."""
    rejection = decision.rejection
    by = rejection.by
    names = by[0].rule.slug if len(by) == 1 else ", ".join(dict.fromkeys([each.rule.slug for each in by]))
    args = names, _why(decision) if decision.degraded else ""
    make = logging.getLogRecordFactory()
    record = make(logger.name, logging.WARNING, __file__, 0, MESSAGE, args, None, "_log_rejection")
    record.__dict__.update(_extra(decision, rejection, identity))
    logger.handle(record)


def _why(decision: Decision) -> str:
    """Return a sentence about a rejection that was decided without the engine; empty for all others."""
    if decision.unavailable:
        return " Decided without Redis: its failure policy is “closed”."
    if any(result.local for result in decision.rejected_by):
        return " Decided without Redis: this process counts by itself, with smaller quotas."
    return ""


def _extra(decision: Decision, of: Result | Rejection, identity: Identity | None) -> dict[str, Any]:
    """Return the attributes of a record. `None` = not known, because nothing was counted."""
    by = of.binding if isinstance(of, Rejection) else of
    return {
        "rule": by and by.rule.slug,
        "tier": by and by.tier and by.tier.slug,
        "partition": of.digest and whole(of.digest),
        "customer": identity and identity.customer_label,
        "version": decision.version.number,
        "reference": of.reference,
    }
