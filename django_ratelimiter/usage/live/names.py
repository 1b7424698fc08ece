"""Names instead of digests: the names of callers that REVEAL lets staff see, and the views that rejected them.

Both are stored only in Redis, for a day, in a fixed number of keys: two names with one key replace each other, and are
sent again. A process sends them after a rejected request, and not again for a while; an allowed request sends nothing.
Views are not personal data, so they are sent whatever REVEAL is.
Before a name is shown, the permission `reveal_caller` must be checked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from time import monotonic, time
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.utils.asyncio import async_unsafe

from ...backend import get_engine
from ...conf import are_revealed
from ...engine.usage.rejections import NAME_SECONDS
from ...exceptions import EngineUnavailable
from ...rules.records import RuleRecord
from ...values.partitions import encode_partition, partition_names

logger = logging.getLogger("django_ratelimiter")

#: The permission to see a name.
PERMISSION: Final = "django_ratelimiter.reveal_caller"

#: Seconds after which a process sends the same name again, and how many it remembers.
TELL_AGAIN_SECONDS: Final = 3_600.0
#: The same if something is left to send: a name that had to wait, or which of several views is the latest.
TELL_SOON_SECONDS: Final = 60.0
MAX_NOTIFIED: Final = 10_000

#: Maximum number of calls per second with names; the maximum number of views that wait in between.
MAX_PER_SECOND: Final = 5
MAX_WAITING: Final = 500

#: Returns the digest and the partition of a request by these names.
FindPartition = Callable[[tuple[str, ...]], tuple[str, str] | None]


class Name(NamedTuple):
    """The caller of a digest. kind: `user`, `ip`, …; `partition` if several values identify callers."""

    kind: str
    value: str


class News(NamedTuple):
    """The names to send after a rejected request.

    texts: the view by rule and digest, and the caller's name by digest. lasts: seconds for which the same request
    has no new names. replaced: views that were the latest of the same callers until now.
    """

    texts: dict[str, str | tuple[str, ...]]
    lasts: float
    replaced: set[str]


class _Notified:
    """The names that this process has sent recently, and waiting views. Not locked: a race at worst sends one twice."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._views: dict[str, tuple[str, float]] = {}
        self._waiting: dict[str, str] = {}
        self._second, self._left = 0, MAX_PER_SECOND

    def meet(self, about: str, view: str) -> tuple[bool, str]:
        """Let a view wait, unless it is already sent or waiting as the latest of this rule and caller.

        Returns whether there was room, and the previous latest view; "" = none, or the same.
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
        """True if views wait."""
        return bool(self._waiting)

    def waiting(self) -> dict[str, str]:
        """Return the waiting views, and mark them as sent."""
        found, self._waiting = self._waiting, {}
        return found

    def is_due(self, digest: str) -> bool:
        """Return whether the name of this caller was not sent recently."""
        return self._until.get(digest, 0.0) <= monotonic()

    def note(self, digests: Iterable[str]) -> None:
        """Mark these names as sent."""
        until = monotonic() + TELL_AGAIN_SECONDS
        if len(self._until) >= MAX_NOTIFIED:
            self._until.clear()
        self._until.update(dict.fromkeys(digests, until))

    def note_lost(self, whats: Iterable[str]) -> None:
        """Send these names and views again: Redis did not store them."""
        for what in whats:
            self._until.pop(what, None)
            self._views.pop(what, None)

    def may_tell(self) -> bool:
        """Return whether one more call of Redis is allowed in this second, and count it."""
        second = int(monotonic())
        if self._second != second:
            self._second, self._left = second, MAX_PER_SECOND
        self._left -= 1
        return self._left >= 0

    def forget(self) -> None:
        """Send all names again."""
        for known in (self._until, self._views, self._waiting):
            known.clear()
        self._left = MAX_PER_SECOND


notified: Final = _Notified()


def news_of(rejecting: Iterable[tuple[RuleRecord, str]], view: str) -> News:
    """Return the names to send after a rejected request, and those that wait.

    rejecting: the rules that reject it, each with the digest of the caller; its name is only sent if REVEAL allows it.
    If there are many callers, views wait for a later call.
    """
    names: dict[str, tuple[str, ...]] = {}
    replaced: set[str] = set()
    lasts = TELL_AGAIN_SECONDS
    for rule, digest in rejecting:
        if view:
            is_met, before = notified.meet(f"{rule.slug} {digest}", view)
            if before:
                replaced.add(before)
            if before or not is_met:
                lasts = TELL_SOON_SECONDS
        by = rule.partition_by
        if by and are_revealed(by) and notified.is_due(digest):
            names[digest] = tuple(by)
    if not (names or notified.has_waiting):
        return News({}, lasts, replaced)
    if not notified.may_tell():
        return News({}, TELL_SOON_SECONDS, replaced)  # so that waiting names are sent soon
    notified.note(names)
    return News({**notified.waiting(), **names}, lasts, replaced)


@async_unsafe("Redis is asked by the client of the cache; `limiter.acheck` does it in a thread.")
def tell(news: Mapping[str, str | tuple[str, ...]], find: FindPartition) -> bool:
    """Store the names from `news_of`; False, without an exception, if Redis is out of reach.

    find: returns the digest of a caller and its partition, by the names of its values; `None` if one is missing.
    """
    texts: dict[str, str] = {}
    for what, text in news.items():
        if isinstance(text, str):
            texts[what] = text
        elif (found := find(text)) is not None and found[0] == what:  # else it is counted by another value
            texts[what] = found[1]
    return _write(texts)


def keep(partitions: Mapping[str, str]) -> None:
    """Store the names of these digests, unless that was done recently. The caller must check REVEAL."""
    news = {digest: partition for digest, partition in partitions.items() if notified.is_due(digest)}
    if news:
        notified.note(news)
        _write(news)


def _write(texts: Mapping[str, str]) -> bool:
    try:
        _store().write(texts)
    except EngineUnavailable as error:
        logger.debug("Names of callers were not stored: %s", error)
        notified.note_lost(texts)
        return False
    return True


def forget(digest: str, rules: Iterable[str]) -> int:
    """Remove the name of a digest and its views in these rules, and return their number. Raises EngineUnavailable."""
    known = [*_store().read([digest, *(f"{rule} {digest}" for rule in dict.fromkeys(rules))])]
    _store().delete(known)
    notified.note_lost(known)
    return len(known)


def remember(digest: str, kind: str, value: str) -> None:
    """Store the name of a digest, if REVEAL allows it: for a page on which a caller was looked up."""
    if are_revealed([kind]):
        _write({digest: encode_partition([(kind, value)])})


def revealed(digests: Iterable[str]) -> dict[str, Name]:
    """Return the known names of these digests that REVEAL allows; in one call of Redis."""
    found = _read(list(digests))
    return {digest: _name(text) for digest, text in found.items() if are_revealed(partition_names(text))}


def revealed_to(reader: Any, digests: Iterable[str]) -> dict[str, Name]:
    """Return the known names of these digests that this user may see; none without the permission."""
    digests = set(digests)
    return revealed(digests) if digests and reader.has_perm(PERMISSION) else {}


def views(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the latest known view for each rule and digest; in one call of Redis.

    Waiting views of this process are sent first.
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
    """Names if the engine is in this process's memory."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, float]] = {}

    def write(self, news: Mapping[str, str]) -> None:
        """Store these."""
        if len(self._texts) >= MAX_NOTIFIED:
            self._texts.clear()
        until = time() + NAME_SECONDS
        self._texts.update({what: (text, until) for what, text in news.items()})

    def read(self, whats: Iterable[str]) -> dict[str, str]:
        """Return those of these that are known, and not too old."""
        now, nothing = time(), ("", 0.0)
        found = {what: self._texts.get(what, nothing) for what in whats}
        return {what: text for what, (text, until) in found.items() if until > now}

    def delete(self, whats: Iterable[str]) -> None:
        """Delete these."""
        for what in whats:
            self._texts.pop(what, None)


_in_memory: Final[WeakKeyDictionary[object, _MemoryNames]] = WeakKeyDictionary()


def _store() -> Any:
    engine: object = get_engine()
    return getattr(engine, "names", None) or _in_memory.setdefault(engine, _MemoryNames())
