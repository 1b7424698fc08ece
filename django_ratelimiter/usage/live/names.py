"""Names instead of digests: who the callers are that staff may see by REVEAL, and the views that rejected them.

Both are stored only in Redis, for a day, in a fixed number of keys: two names with one key replace each other, and are
sent again. A process notes them, and a thread sends them once a second: no request waits for it. Views are not personal
data, so they are sent whatever REVEAL is.
Before a name is shown, the permission `reveal_caller` must be checked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from time import monotonic, time
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from ...backend import get_engine
from ...conf import are_revealed
from ...engine.usage.rejections import NAME_SECONDS
from ...exceptions import EngineUnavailable
from ...values.partitions import encode_partition, partition_names
from .sending import Sender

logger = logging.getLogger("django_ratelimiter")

#: The permission to see a name.
PERMISSION: Final = "django_ratelimiter.reveal_caller"

#: Maximum number of names that wait to be sent, and of views.
MAX_WAITING: Final = 500
#: Which of a caller's reported calls of an hour send its names; after them, each `RENEWED`th does.
FIRST, RENEWED = (1, 4, 16), 64

#: Seconds after which the view of the same rejection, and its caller's name, are sent again.
VIEW_SECONDS: Final = 3_600.0

#: Maximum number of callers whose requests are counted, of views that were sent, and of names in a process's memory.
MAX_NOTIFIED: Final = 10_000


class Name(NamedTuple):
    """The caller of a digest. kind: `user`, `ip`, …; `partition` if several values identify callers."""

    kind: str
    value: str

    @property
    def shown(self) -> str:
        """The value as text: of the hash of an API key only the start."""
        is_hash = self.kind == "api_key" and re.fullmatch(r"[0-9a-f]{64}", self.value)
        return f"{self.value[:8]}…" if is_hash else self.value


class _Notes:
    """How often each caller was reported by this process in this hour, and what waits to be sent.

    Not locked: a race at worst sends something twice, or one request later.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start as a new process."""
        self._hour = -1
        #: The reported calls of this hour, by the digests of their callers.
        self.times: dict[tuple[str, ...], int] = {}
        self.names: dict[str, str] = {}
        self.views: dict[str, str] = {}
        #: By the reference of a rejection: its latest view, and the monotonic time until which it is not sent again.
        self._latest: dict[str | None, tuple[str, float]] = {}

    def is_due(self, callers: tuple[str, ...]) -> bool:
        """Count a call that reports these digests among the top callers, and return whether to send their names.

        As long as too many names wait, nothing is counted: then a later call sends them.
        """
        if (hour := int(time() // 3_600)) != self._hour:
            self._hour, self.times = hour, {}
        if len(self.names) >= MAX_WAITING:
            return False
        if len(self.times) >= MAX_NOTIFIED:
            half = {who: times // 2 for who, times in self.times.copy().items() if times > 1}
            self.times = half if len(half) <= MAX_NOTIFIED // 2 else {}
        times = self.times[callers] = self.times.get(callers, 0) + 1
        return times in FIRST or times % RENEWED == 0

    def add(self, names: Mapping[str, str]) -> None:
        """Let these names wait, by digest."""
        if names:
            self.names |= names
            sender.start()

    def add_view(self, reference: str | None, view: str, rejecting: Iterable[Any]) -> bool:
        """Let the view of a rejection wait, unless it is known as the latest of this caller. Return whether it was not.

        Then the caller's name is due as well. rejecting: what rejects the request, each with a rule and the digest of
        the caller. view: "" = not known.
        """
        known, until = self._latest.get(reference, ("", 0.0))
        now = monotonic()
        if (until >= now and view in ("", known)) or max(len(self.views), len(self.names)) >= MAX_WAITING:
            return False
        if view:
            self.views |= {f"{each.rule.slug} {each.digest or ''}": view for each in rejecting}
            sender.start()
        if len(self._latest) >= MAX_NOTIFIED:
            self._latest.clear()
        self._latest[reference] = view, now + VIEW_SECONDS
        return True


notes: Final = _Notes()


def waits() -> bool:
    """Return whether names or views of this process wait."""
    return bool(notes.names or notes.views)


def send() -> None:
    """Send what waits. If Redis is out of reach, it waits on."""
    texts, notes.names, notes.views = notes.names | notes.views, {}, {}
    if texts and not _write(texts):
        notes.views = dict([*texts.items(), *notes.views.items()][-MAX_WAITING:])


sender: Final = Sender(send, waits)


def _write(texts: Mapping[str, str]) -> bool:
    try:
        _store().write(texts)
    except EngineUnavailable as error:
        logger.debug("Names of callers were not stored: %s", error)
        return False
    return True


def forget(digest: str, rules: Iterable[str]) -> int:
    """Remove the name of a digest and its views in these rules, and return their number. Raises EngineUnavailable."""
    send()
    known = [*_store().read([digest, *(f"{rule} {digest}" for rule in dict.fromkeys(rules))])]
    _store().delete(known)
    return len(known)


def remember(digest: str, kind: str, value: str) -> None:
    """Store the name of a digest, if REVEAL allows it: for a page on which a caller was looked up."""
    if are_revealed([kind]):
        _write({digest: encode_partition([(kind, value)])})


def revealed_to(reader: Any, digests: Iterable[str]) -> dict[str, Name]:
    """Return the known names of these digests that REVEAL allows and this user may see; in one call of Redis.

    `None` = may see all; none without the permission. Raises EngineUnavailable.
    """
    if reader is not None and not reader.has_perm(PERMISSION):
        return {}
    found = _read(list(dict.fromkeys(digests)))
    return {digest: _name(text) for digest, text in found.items() if are_revealed(partition_names(text))}


def views(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the latest known view for each rule and digest; in one call of Redis. Raises EngineUnavailable."""
    by_text = {f"{rule} {digest}": (rule, digest) for rule, digest in pairs}
    return {by_text[what]: view for what, view in _read(list(by_text)).items()}


def _read(whats: list[str]) -> dict[str, str]:
    """Return what is known, after what waits in this process was sent."""
    send()
    found: dict[str, str] = _store().read(whats) if whats else {}
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
