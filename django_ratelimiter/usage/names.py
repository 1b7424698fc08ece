"""Names instead of digests: what REVEAL lets staff know of callers, and the views that rejected them.

Both are kept in Redis only, for a week, in a fixed number of keys: two names of one key push each other out, and are
told again. A process tells them beside a rejected request, and not again for a while; an allowed request tells nothing.
Views are nobody's personal data, and told whatever REVEAL says.
Whoever shows a name asks for the permission `reveal_caller` first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.utils.asyncio import async_unsafe

from ..backend import get_engine
from ..conf import settings
from ..exceptions import EngineUnavailable
from ..rules.records import RuleRecord
from ..values.partitions import encode_partition, partition_names

logger = logging.getLogger("django_ratelimiter")

#: What staff need to see a name.
PERMISSION: Final = "django_ratelimiter.reveal_caller"

#: Seconds after which a process tells the same again; and how much it remembers to have told.
TELL_AGAIN_SECONDS: Final = 3_600.0
#: The same where something is left to tell: a name that had to wait, or which of several views is the latest.
TELL_SOON_SECONDS: Final = 60.0
MAX_NOTIFIED: Final = 10_000

#: So often in a second a process tells; in between, so many views wait.
MAX_PER_SECOND: Final = 5
MAX_WAITING: Final = 500

#: Finds the digest and the partition of a request by these names.
FindPartition = Callable[[tuple[str, ...]], tuple[str, str] | None]


class Name(NamedTuple):
    """Who a digest stands for. kind: `user`, `ip`, …; `partition` where several values tell callers apart."""

    kind: str
    value: str


class News(NamedTuple):
    """What to tell of a rejected request.

    texts: the view by rule and digest, and by digest what the caller is to be named by. lasts: seconds for which there
    is nothing new of the same request. replaced: views that were the latest of the same callers until now.
    """

    texts: dict[str, str | tuple[str, ...]]
    lasts: float
    replaced: set[str]


class _Notified:
    """What this process has told lately, and views that wait. For all threads, without a lock: a race at worst tells
    twice.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._views: dict[str, tuple[str, float]] = {}
        self._waiting: dict[str, str] = {}
        self._second, self._left = 0, MAX_PER_SECOND

    def meet(self, about: str, view: str) -> tuple[bool, str]:
        """Let a view wait, unless it was told, or waits, as the latest about this rule and caller.

        Returns whether it could, and the latest view before; "" = none, or the same.
        """
        now = monotonic()
        known, until = self._views.get(about, ("", 0.0))
        if known == view and until > now:
            return True, ""
        if len(self._views) >= MAX_NOTIFIED:
            self._views.clear()
        has_room = len(self._waiting) < MAX_WAITING or about in self._waiting
        if has_room:
            self._views[about] = view, now + TELL_AGAIN_SECONDS
            self._waiting[about] = view
        return has_room, "" if known == view else known

    @property
    def has_waiting(self) -> bool:
        """Whether views wait."""
        return bool(self._waiting)

    def waiting(self) -> dict[str, str]:
        """Return the views that wait; now they are told."""
        found, self._waiting = self._waiting, {}
        return found

    def is_due(self, digest: str) -> bool:
        """Return whether the name of this caller was not told lately."""
        return self._until.get(digest, 0.0) <= monotonic()

    def note(self, digests: Iterable[str]) -> None:
        """Note that these names are told."""
        until = monotonic() + TELL_AGAIN_SECONDS
        if len(self._until) >= MAX_NOTIFIED:
            self._until.clear()
        self._until.update(dict.fromkeys(digests, until))

    def may_tell(self) -> bool:
        """Return whether this second has room for one more trip to Redis; it is taken."""
        second = int(monotonic())
        if self._second != second:
            self._second, self._left = second, MAX_PER_SECOND
        self._left -= 1
        return self._left >= 0

    def forget(self) -> None:
        """Tell all again."""
        for known in (self._until, self._views, self._waiting):
            known.clear()
        self._left = MAX_PER_SECOND


notified: Final = _Notified()


def news_of(refusing: Iterable[tuple[RuleRecord, str]], view: str) -> News:
    """Return what to tell of a rejected request that was not told lately, and what waits to be told.

    refusing: the rules that reject it, each with the digest of the caller, who is named only if REVEAL says so. In a
    flood of callers views wait for a later call.
    """
    names: dict[str, tuple[str, ...]] = {}
    replaced: set[str] = set()
    lasts = TELL_AGAIN_SECONDS
    for rule, digest in refusing:
        if view:
            is_met, before = notified.meet(f"{rule.slug} {digest}", view)
            if before:
                replaced.add(before)
            if before or not is_met:
                lasts = TELL_SOON_SECONDS
        by = rule.partition_by
        if by and not set(by) - set(settings.REVEAL) and notified.is_due(digest):
            names[digest] = tuple(by)
    if not (names or notified.has_waiting):
        return News({}, lasts, replaced)
    if not notified.may_tell():
        return News({}, TELL_SOON_SECONDS, replaced)  # so that what waits is told, too
    notified.note(names)
    return News({**notified.waiting(), **names}, lasts, replaced)


@async_unsafe("Redis is asked by the client of the cache; `limiter.acheck` does it in a thread.")
def tell(news: Mapping[str, str | tuple[str, ...]], find: FindPartition) -> None:
    """Keep what `news_of` has returned. Without Redis nothing is kept, and nothing is raised.

    find: the digest of a caller and its partition, by the names of its values; `None` if it lacks one of them.
    """
    texts: dict[str, str] = {}
    for what, text in news.items():
        if isinstance(text, str):
            texts[what] = text
        elif (found := find(text)) is not None and found[0] == what:  # else it is counted by something else
            texts[what] = found[1]
    _write(texts)


def keep(partitions: Mapping[str, str]) -> None:
    """Keep whom these digests stand for, unless that was done lately. The caller has asked REVEAL."""
    news = {digest: partition for digest, partition in partitions.items() if notified.is_due(digest)}
    if news:
        notified.note(news)
        _write(news)


def _write(texts: Mapping[str, str]) -> None:
    try:
        _store().write(texts)
    except EngineUnavailable as error:
        logger.debug("Names of callers were not stored: %s", error)


def remember(digest: str, kind: str, value: str) -> None:
    """Keep who a digest stands for, if REVEAL says so: for a page where somebody has looked a caller up."""
    if kind in settings.REVEAL:
        _write({digest: encode_partition([(kind, value)])})


def revealed(digests: Iterable[str]) -> dict[str, Name]:
    """Return who these digests stand for, as far as it is known and REVEAL says so; in one call to Redis."""
    found = _read(list(digests))
    return {digest: _name(text) for digest, text in found.items() if set(partition_names(text)) <= set(settings.REVEAL)}


def views(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the view that was told last for each rule and digest, as far as one is known; in one call to Redis.

    Views of this process that wait are told before.
    """
    if notified.has_waiting:
        _write(notified.waiting())  # of this process
    by_text = {f"{rule} {digest}": (rule, digest) for rule, digest in pairs}
    return {by_text[what]: view for what, view in _read(list(by_text)).items()}


def _read(whats: list[str]) -> dict[str, str]:
    try:
        found: dict[str, str] = _store().read(whats) if whats else {}
    except EngineUnavailable:
        return {}
    return found


def _name(partition: str) -> Name:
    names = partition_names(partition)
    if len(names) > 1:
        return Name("partition", partition)
    value = partition.removeprefix(f"{names[0]}:")
    return Name(names[0], value.replace("%7C", "|").replace("%25", "%"))


class _MemoryNames:
    """Names where the engine is in this process's memory."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def write(self, news: Mapping[str, str]) -> None:
        """Keep these."""
        if len(self._texts) >= MAX_NOTIFIED:
            self._texts.clear()
        self._texts.update(news)

    def read(self, whats: Iterable[str]) -> dict[str, str]:
        """Return those of these that are known."""
        return {what: self._texts[what] for what in whats if what in self._texts}


_in_memory: Final[WeakKeyDictionary[object, _MemoryNames]] = WeakKeyDictionary()


def _store() -> Any:
    engine: object = get_engine()
    return getattr(engine, "names", None) or _in_memory.setdefault(engine, _MemoryNames())
