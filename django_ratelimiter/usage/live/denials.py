"""Recent denials by access entries: counted in each process, and sent to Redis outside of the request path.

A denied request does not call Redis: a thread sends the counts. Counts that are not sent when a process ends are lost,
and without Redis they are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from os import getpid
from threading import Lock
from time import time
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from ...backend import get_engine
from ...engine.locks import freed_by_fork
from ...engine.usage.rejections import Denial
from ...exceptions import EngineUnavailable
from ...values.access import AccessRecord, Names
from .names import notes
from .sending import Sender

logger = logging.getLogger("django_ratelimiter")

#: Maximum number of callers that are counted separately between two calls; of others, only the entry is counted.
MAX_WAITING: Final = 100

#: Seconds after which a denied caller is no longer shown.
FORGOTTEN_SECONDS: Final = 86_400


class DeniedCaller(NamedTuple):
    """A caller that an access entry denies. Each view has its own row.

    entry: its primary key; `None` = it was never in the database. kind: what the entry has found the caller by, such as
    ip; "user|ip" = both. digest: of the caller by that, as in rules; "" = callers that were not counted separately.
    view: its name; "" = not known. at, since: the last time and the first. times: how often.
    """

    entry: int | None
    kind: str
    digest: str
    view: str
    at: datetime
    since: datetime
    times: int


class _Waiting:
    """The counts of this process that are not sent yet."""

    def __init__(self) -> None:
        self._lock = freed_by_fork(Lock())
        self.begin()

    def begin(self) -> None:
        """Start as a new process, without counts."""
        self._pid = getpid()
        self._denials: dict[str, Denial] = {}

    def __bool__(self) -> bool:
        return bool(self._denials)

    def add(self, what: str, others: str) -> bool:
        """Count a denied request. Return whether its caller is counted separately.

        others: the name to count it under if there are too many different `what`.
        """
        now = int(time())
        with self._lock:
            if self._pid != getpid():
                self.begin()
            if what not in self._denials and len(self._denials) >= MAX_WAITING:
                what = others
            known = self._denials.get(what)
            since, times = (known.since, known.times) if known else (now, 0)
            self._denials[what] = Denial(what, now, since, times + 1)
        return what is not others

    def drain(self) -> list[Denial]:
        """Return and remove the counts, to send them."""
        with self._lock:
            found, self._denials = list(self._denials.values()), {}
        return found


waiting: Final = _Waiting()


def note(record: AccessRecord, by: Names, digest: str, named: Mapping[str, str], view: str) -> None:
    """Count a request that an access entry denies. Returns at once and never raises.

    by: what the entry has found the caller by; digest: of the caller by that. named: its name by digest; empty = it
    must not be stored.
    """
    start = f"{record.pk or 0} {'|'.join(by)}"
    if waiting.add(f"{start} {digest} {view}", f"{start}  {view}") and named and notes.is_due((digest,)):
        notes.add(named)
    sender.start()


def send() -> None:
    """Send the counts of this process. Without Redis they are dropped, and nothing is raised."""
    denials = waiting.drain()
    if not denials:
        return
    try:
        _store().add(denials)
    except EngineUnavailable as error:
        logger.debug("Denied callers were not recorded: %s", error)


sender: Final = Sender(send, lambda: bool(waiting))


def recently_denied(limit: int | None = 100) -> list[DeniedCaller]:
    """Return callers that access entries have denied in the last day, the latest first. Raises EngineUnavailable.

    limit: the maximum number; `None` = all that are stored.
    """
    send()
    return _latest(_store().read())[:limit]


def denials_by(digests: Collection[str], limit: int = 100, known: Iterable[Denial] | None = None) -> list[DeniedCaller]:
    """Return the denials of callers with these digests in the last day, the latest first. Raises EngineUnavailable.

    known: the denials of all callers, if they have been read already.
    """
    found = recently_denied(limit=None) if known is None else _latest(known)
    return [each for each in found if each.digest in digests][:limit]


def _latest(known: Iterable[Denial]) -> list[DeniedCaller]:
    """Return those of the last day, the latest first."""
    oldest = time() - FORGOTTEN_SECONDS
    found = sorted((each for each in known if each.at > oldest), key=lambda each: (-each.at, each.what))
    return [_caller_of(each) for each in found]


def _caller_of(denial: Denial) -> DeniedCaller:
    entry, kind, digest, view = denial.what.split(" ", 3)
    at, since = (datetime.fromtimestamp(each, UTC) for each in (denial.at, denial.since))
    return DeniedCaller(int(entry) or None, kind, digest, view, at, since, denial.times)


class _MemoryDenials:
    """Denied callers if the engine is in this process's memory."""

    def __init__(self) -> None:
        self._known: dict[str, Denial] = {}

    def add(self, denials: list[Denial]) -> None:
        """Add these; if there are too many, they replace the oldest."""
        for what, at, since, times in denials:
            known = self._known.pop(what, None)
            since, times = (known.since, known.times + times) if known else (since, times)
            self._known[what] = Denial(what, at, since, times)
        for what in list(self._known)[: -10 * MAX_WAITING]:
            del self._known[what]

    def read(self) -> list[Denial]:
        """Return all stored ones."""
        return list(self._known.values())


_in_memory: Final[WeakKeyDictionary[object, _MemoryDenials]] = WeakKeyDictionary()


def _store() -> Any:
    engine: object = get_engine()
    return getattr(engine, "denials", None) or _in_memory.setdefault(engine, _MemoryDenials())
