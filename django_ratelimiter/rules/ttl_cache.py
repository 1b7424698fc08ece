"""Caches of database rows in this process, kept for TIER_CACHE_SECONDS, with maximum sizes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable
from itertools import count
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from django.db import Error
from django.utils.asyncio import async_unsafe

from ..conf import settings
from ..locks import freed_by_fork

logger = logging.getLogger("django_ratelimiter")

CACHE_SIZE: Final = 20_000

#: Maximum number of keys in one query.
MAX_BATCH: Final = 200

#: Maximum number of unknown keys that one process looks up in a second.
MISSES_PER_SECOND: Final = 100

#: Exceptions of a database that is out of reach, and of reading rows that other code wrote.
_UNREADABLE: Final = (Error, ValueError, TypeError, ArithmeticError)

#: For calls that may wait for the database: on an event loop it raises SynchronousOnlyOperation.
_WAITS: Final = async_unsafe("Assignments have to be read from the database; `limiter.acheck` does it in a thread.")

Found = TypeVar("Found")


class TTLCache(Generic[Found]):
    """Cache of `find(key)` by key. find: one query. otherwise: the value while the database cannot be read."""

    def __init__(self, find: Callable[[Any], Found], otherwise: Found) -> None:
        self._find, self._otherwise = _WAITS(find), otherwise
        self._cached: dict[Hashable, tuple[float, Found]] = {}

    def get(self, key: Hashable) -> Found:
        """Return the value of `key`. No query when cached."""
        now = time.monotonic()
        cached = self._cached.get(key)
        if cached and now < cached[0]:
            return cached[1]
        try:
            found = self._find(key)
        except _UNREADABLE:
            logger.exception("Tier assignments cannot be read; the last ones known or the default tier are used.")
            found = cached[1] if cached else self._otherwise
        if cached is None and len(self._cached) >= CACHE_SIZE:
            self._cached.clear()
        self._cached[key] = (now + settings.TIER_CACHE_SECONDS, found)
        return found

    def forget(self) -> None:
        """Drop all values."""
        self._cached.clear()


class BatchCache(Generic[Found]):
    """Cache of many keys that are read repeatedly: when one has expired, others are read in the same query.

    These are the next MAX_BATCH keys that were read after it, if they have expired too and were used since: a caller
    that came after it then is likely to come after it now. So a process with thousands of callers makes one query for
    hundreds of them. find: returns the values of these keys, by key. otherwise: the value while the database cannot be
    read, and of a key that is not found.
    """

    def __init__(self, find: Callable[[list[Any]], dict[Any, Found]], otherwise: Found) -> None:
        self._find, self._otherwise = _WAITS(find), otherwise
        self.forget()

    def get(self, key: Hashable) -> Found:
        """Return the value of `key`. No query when cached."""
        now = time.monotonic()
        cached = self._cached.get(key)
        if cached is None or now >= cached[0]:
            return self._renew(key, now)
        cached[2] = True
        found: Found = cached[1]
        return found

    def forget(self) -> None:
        """Drop all values."""
        #: Expiry, value, whether it was used since, and the number of the read.
        self._cached: dict[Hashable, list[Any]] = {}
        self._by_number: dict[int, Hashable] = {}
        self._numbers = count()

    def _renew(self, key: Hashable, now: float) -> Found:
        """Read the values of `key`, and of the keys that were read after it."""
        others = self._followers(key, now)
        found = self._read([key, *others])
        if len(self._by_number) >= CACHE_SIZE:  # two threads may have added one key twice
            self.forget()
        until = now + settings.TIER_CACHE_SECONDS
        result: Found = found.get(key, self._otherwise)
        self._keep(key, [until, result, True])
        for other in others:
            if other in found and other in self._cached:  # the cache was not cleared meanwhile
                self._keep(other, [until, found[other], False])
        return result

    def _keep(self, key: Hashable, entry: list[Any]) -> None:
        if known := self._cached.get(key):
            self._by_number.pop(known[3], None)
        number = next(self._numbers)
        self._cached[key], self._by_number[number] = [*entry, number], key

    def _followers(self, key: Hashable, now: float) -> list[Hashable]:
        """Return the keys that were read after `key`, have expired, and were used since; none if it is new."""
        cached = self._cached.get(key)
        found: list[Hashable] = []
        for number in range(cached[3] + 1, cached[3] + 1 + MAX_BATCH) if cached else ():
            other = self._by_number.get(number)
            entry = self._cached.get(other)
            if entry and entry[2] and now >= entry[0]:
                found.append(other)
        return found

    def _read(self, keys: list[Hashable]) -> dict[Any, Found]:
        """Return the values of these keys; only of the first, or the old value, if the others cannot be read."""
        try:
            return self._find(keys)
        except _UNREADABLE as error:
            if len(keys) > 1 and not isinstance(error, Error):  # a row of another caller may be the cause
                return self._read(keys[:1])
            logger.exception("Tier assignments cannot be read; the last ones known or the default tier are used.")
            return {each: known[1] for each in keys if (known := self._cached.get(each))}


class KeyCache(TTLCache[str | None]):
    """Cache of the keys that callers send, by the identity of each; `None` = unknown.

    Made-up keys do not replace known ones, and a process looks up at most MISSES_PER_SECOND of them: half for keys that
    come for the first time, half for keys that it had to turn away. Addresses share each half: one gets no more than
    what is left when it has got it, so there is as much for the next. Other keys are only looked up if `all_keys`
    contains them. all_keys: every known key; `None` if they cannot be listed. has_form: a test before the lookup.
    """

    def __init__(
        self,
        find: Callable[[Any], str | None],
        all_keys: TableCache[frozenset[str] | None] | None = None,
        has_form: Callable[[Any], bool] = lambda _key: True,
    ) -> None:
        super().__init__(find, None)
        self._all_keys, self._has_form = all_keys, has_form
        self._unknown: dict[Hashable, float] = {}
        #: The hashes of keys that were not looked up when they came.
        self._turned_away: set[int] = set()
        self._since = float("-inf")

    def get(self, key: Hashable, address: Callable[[], str | None] = lambda: None) -> str | None:
        """Return the identity of `key`. address: returns who sent it, if it must be looked up."""
        now = time.monotonic()
        cached = self._cached.get(key)
        if cached and now < cached[0]:
            return cached[1]
        if now < self._unknown.get(key, now):
            return None
        if now - self._since >= 1:
            self._since, self._misses = now, (Counter[str | None](), Counter[str | None]())
        misses, sender = self._misses[hash(key) in self._turned_away], address()
        if not self._is_worth_asking(key, misses, sender) or not self._has_form(key):
            return None
        found = super().get(key)
        self._turned_away.discard(hash(key))
        if found is None:
            self._cached.pop(key, None)
            if len(self._unknown) >= CACHE_SIZE:
                self._unknown.clear()
            self._unknown[key] = now + settings.TIER_CACHE_SECONDS
            misses[sender] += 1
        return found

    def forget(self) -> None:
        super().forget()
        self._unknown.clear()
        self._turned_away.clear()
        self._since = float("-inf")
        if self._all_keys is not None:
            self._all_keys.forget()

    def _is_worth_asking(self, key: Hashable, misses: Counter[str | None], sender: str | None) -> bool:
        if key in self._cached or not settings.TIER_CACHE_SECONDS:
            return True
        if misses[sender] < MISSES_PER_SECOND // 2 - misses.total():
            return True
        known = self._all_keys.get() if self._all_keys is not None else None
        if known is not None:
            return key in known
        if len(self._turned_away) >= CACHE_SIZE:
            self._turned_away.clear()
        self._turned_away.add(hash(key))
        return False


class TableCache(Generic[Found]):
    """Cache of `find()`: all rows of a kind, in one query.

    While one thread reads it again, the others use the old value. It is kept while the
    database cannot be read. what: its name in the log.
    """

    def __init__(self, find: Callable[[], Found], otherwise: Found, what: str) -> None:
        self._find, self._otherwise, self._what = find, otherwise, what
        self._lock = freed_by_fork(Lock())
        self.forget()

    def get(self) -> Found:
        """Return all rows. No query when cached."""
        if time.monotonic() >= self._until and not (self._is_read and self._lock.locked()):
            self._renew()
        return self._found

    def forget(self) -> None:
        """Drop the value."""
        self._found, self._is_read, self._until = self._otherwise, False, float("-inf")

    @_WAITS
    def _renew(self) -> None:
        with self._lock:
            if time.monotonic() >= self._until:
                self._read()

    def _read(self) -> None:
        try:
            self._found = self._find()
        except _UNREADABLE:
            logger.exception("%s cannot be read; the last ones known are used.", self._what)
        self._is_read = True
        self._until = time.monotonic() + settings.TIER_CACHE_SECONDS
