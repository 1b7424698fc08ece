"""Caches of database rows in this process, kept for TIER_CACHE_SECONDS, with maximum sizes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack, suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from django.apps import apps
from django.db import Error, InterfaceError, OperationalError, router
from django.utils.asyncio import async_unsafe

from ..conf import settings
from ..databases import has_connection, is_in_transaction
from ..engine.locks import freed_by_fork
from ..logs import logger
from ..plans import CallerIdentity, awaited, resolved
from .reading import AnswerAwaited, Start, asked_by

CACHE_SIZE: Final = 20_000

#: Maximum number of unknown keys that one process looks up in a second.
MISSES_PER_SECOND: Final = 100

#: Maximum number of different names that a project's code reads of callers; then all its answers are dropped.
MAX_NAMES: Final = 32

#: Seconds to wait after a failure of the database, or MAX_FAILURES in a row of a project's code.
RETRY_SECONDS: Final = 1.0
MAX_FAILURES: Final = 3
#: Then one thread asks again, for all; maximum seconds until another does, if that one gets no answer.
PROBE_SECONDS: Final = 60.0


class NoAnswer(Exception):
    """Raised instead of reading rows from a table that does not exist yet. It is already logged."""


class OwnCodeFailed(Exception):
    """Raised if a project's own code fails. Logged without a traceback: tools record the variables, such as a key."""


#: Exceptions of a database that is out of reach, or has no tables.
_UNREACHABLE: Final = (OperationalError, InterfaceError, NoAnswer)
#: The same, and exceptions of reading rows that other code wrote.
_UNREADABLE: Final = (*_UNREACHABLE, OwnCodeFailed, Error, ValueError, TypeError, ArithmeticError)

#: For calls that may wait for the database: on an event loop it raises SynchronousOnlyOperation.
_WAITS: Final = async_unsafe("Assignments have to be read from the database; `limiter.acheck` does it in a thread.")

Found = TypeVar("Found")


class _Answer(NamedTuple):
    """What was read, which may be `None`."""

    value: Any


class _Entry(NamedTuple, Generic[Found]):
    """An answer. until, began: when it expires, and when it was asked for, in monotonic seconds."""

    until: float
    value: Found
    began: float


def _databases() -> set[str]:
    """Return the databases that have assignments and access entries; none if the app is not installed."""
    return {router.db_for_read(model) for model in apps.get_models() if model._meta.app_label == "django_ratelimiter"}


class _Cache(Generic[Found]):
    """The part that all caches share: how they ask the database.

    find: reads rows. otherwise: the value while there has been no answer. what: the name of the rows in the log.
    No thread waits for another's call longer than DEADLINE_MS, nor at all if it knows an earlier answer.
    """

    #: Whether failures that take no time count, too.
    _counts_quick_failures = True

    def __init__(self, find: Callable[..., Any], otherwise: Found, what: str) -> None:
        self._find, self._otherwise, self._what = find, otherwise, what
        self.forget()
        freed_by_fork(self)

    def forget(self) -> None:
        """Drop all values."""
        self._paused_until, self._failures = float("-inf"), 0
        self._at_fork_reinit()

    def _at_fork_reinit(self) -> None:
        #: The calls that have not ended.
        self._under_way: dict[Hashable, Future[None]] = {}

    def _end(self, key: Hashable, call: Future[None]) -> None:
        self._under_way.pop(key, None)
        call.set_result(None)

    @_WAITS
    def _ask(self, *keys: Any) -> tuple[_Answer | None, float]:
        """Return the answer and until when it holds, in monotonic seconds; `None` = there is no answer.

        An error is no answer, and no cache keeps one in its place: it is asked again after RETRY_SECONDS. After an
        error in an open transaction it is asked again at once: perhaps only this transaction cannot read.
        """
        began = time.monotonic()
        if began < self._paused_until:
            return None, min(self._paused_until, began + min(RETRY_SECONDS, settings.TIER_CACHE_SECONDS))
        if self._failures >= MAX_FAILURES:
            self._paused_until = began + PROBE_SECONDS
        return self._answer(partial(self._find, *keys), began)

    def _answer(self, find: Callable[[], Any], began: float) -> tuple[_Answer | None, float]:
        try:
            found = find()
        except _UNREADABLE as error:
            if not isinstance(error, NoAnswer):
                text = "%s cannot be read; the last ones known or the default are used: %s"
                logger.error(text, self._what, error, exc_info=not isinstance(error, OwnCodeFailed))
            is_unreachable = isinstance(error, _UNREACHABLE)  # not because of a transaction in another database
            is_of_database = isinstance(error, Error) or isinstance(error.__context__, Error)
            if is_of_database and is_in_transaction(*(_databases() if is_unreachable else ())):
                self._paused_until = began
                return None, began
            now = time.monotonic()
            until = now + min(RETRY_SECONDS, settings.TIER_CACHE_SECONDS)
            if is_unreachable:
                self._failures = MAX_FAILURES
            elif isinstance(error, OwnCodeFailed):
                counts = self._counts_quick_failures or now - began >= settings.DEADLINE_MS / 1_000
                self._failures = self._failures + 1 if counts else 0
            if self._failures >= MAX_FAILURES:  # for all keys
                self._paused_until = until
            return None, until
        if not isawaitable(found):
            self._paused_until, self._failures = float("-inf"), 0
        return _Answer(found), time.monotonic() + settings.TIER_CACHE_SECONDS


class CallerCache(_Cache[Found]):
    """Cache of what is read for each caller."""

    def get(self, key: Hashable) -> Found:
        """Return the value of `key`. No query when cached."""
        cached = self._cached.get(key)
        if cached is None or time.monotonic() >= cached[0]:
            return self._renew(key, cached)
        return cached[1]

    def forget(self) -> None:
        super().forget()
        self._cached: dict[Hashable, tuple[float, Found]] = {}

    def _renew(self, key: Hashable, cached: tuple[float, Found] | None) -> Found:
        answer, until = self._ask(key)
        value: Found = answer.value if answer else cached[1] if cached else self._otherwise
        if cached is None and len(self._cached) >= CACHE_SIZE:
            self._cached.clear()
        self._cached[key] = until, value
        return value


class KeyCache(_Cache[str | None]):
    """Cache of the keys that callers send, by the identity of each; `None` = unknown.

    Made-up keys do not replace known ones, and a process looks up at most MISSES_PER_SECOND of them: half for keys that
    come for the first time, half for keys that it had to turn away. Addresses share each half: one gets no more than
    what is left when it has got it, so there is as much for the next. Other keys are only looked up if `all_keys`
    contains them. all_keys: every known key; `None` if they cannot be listed. has_form: a test before the lookup.
    """

    _counts_quick_failures = False  # of code that fails for each made-up key
    _since: float

    def __init__(
        self,
        find: Callable[[Any], str | None],
        what: str,
        all_keys: TableCache[frozenset[str] | None] | None = None,
        has_form: Callable[[Any], bool] = lambda _key: True,
    ) -> None:
        self._all_keys, self._has_form = all_keys, has_form
        super().__init__(find, None, what)

    def get(self, key: Hashable, address: Callable[[], str | None] = lambda: None) -> str | None:
        """Return the identity of `key`. address: returns who sent it, if it must be looked up."""
        now = time.monotonic()
        cached = self._cached.get(key)
        if cached and (now < cached[0] or (key in self._under_way and settings.TIER_CACHE_SECONDS)):
            return cached[1]
        if now < self._unknown.get(key, now):
            return None
        if now - self._since >= 1:
            self._since, self._misses = now, (Counter[str | None](), Counter[str | None]())
        share, sender = hash(key) in self._turned_away, address()
        if not self._is_worth_asking(key, self._misses[share], sender) or not self._has_form(key):
            return None
        self._under_way[key] = Future()  # nobody waits for it: a new key is looked up by each thread
        try:
            answer, until = self._ask(key)
        finally:
            self._under_way.pop(key, None)
        found: str | None = answer.value if answer else cached and cached[1]
        self._turned_away.discard(hash(key))
        if found is not None:
            if cached is None and len(self._cached) >= CACHE_SIZE:
                self._cached.clear()
            self._cached[key] = until, found
            return found
        self._cached.pop(key, None)
        if len(self._unknown) >= CACHE_SIZE:
            self._unknown.clear()
        self._unknown[key] = until
        self._misses[share][sender] += 1
        return None

    def forget(self) -> None:
        super().forget()
        self._cached: dict[Hashable, tuple[float, str]] = {}
        self._unknown: dict[Hashable, float] = {}
        #: The hashes of keys that were not looked up when they came.
        self._turned_away: set[int] = set()
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


class IdentityCache(_Cache[Found]):
    """Cache of what a project's code answers about callers: it is called once for a caller, also by many threads.

    find: takes an identity; it may return an awaitable, which no thread of an event loop waits for. The answer counts
    for this user and API key, and for the values of the other names that were read from the identity.
    otherwise: if it is `None`, no last answer known is used.
    """

    def get(self, user_id: str | None, api_key: str | None, read: Callable[[str], Any]) -> Found:
        """Return the value of the caller. Nothing is called when cached. api_key, read: see `CallerIdentity`."""
        known = self._known(user_id, api_key, read)
        if known is None or time.monotonic() >= known[0]:
            return self._renew(user_id, api_key, read)
        return known[1]

    def cached(self, user_id: str | None, api_key: str | None, read: Callable[[str], Any]) -> Found:
        """Return the value of the caller as far as it is known. Nothing is called."""
        known = self._known(user_id, api_key, read)
        return self._otherwise if known is None else known.value

    def forget(self) -> None:
        super().forget()
        #: Answers by user, API key and the values of these names.
        self._cached: tuple[tuple[tuple[str, ...], dict[Hashable, _Entry[Found]]], ...] = ()

    def _known(self, user_id: str | None, api_key: str | None, read: Callable[[str], Any]) -> _Entry[Found] | None:
        latest = None
        for names, entries in self._cached:
            entry = entries.get((user_id, api_key, *map(read, names)) if names else (user_id, api_key))
            if entry is not None and (latest is None or entry.until > latest.until):
                latest = entry
        return latest

    @_WAITS
    def _renew(self, user_id: str | None, api_key: str | None, read: Callable[[str], Any]) -> Found:
        """Ask for the value of the caller, unless another thread does: then use what is known, or wait for that."""
        start, came = asked_by.get() or (None, time.monotonic())
        asking = user_id, api_key, read("address") if user_id is None and api_key is None else None
        while True:
            call = self._under_way.setdefault(asking, mine := Future[None]())
            with ExitStack() as stack:
                if call is mine:
                    stack.callback(self._end, asking, call)
                known, now = self._known(user_id, api_key, read), time.monotonic()
                if known is not None and (now < known.until or known.began > came):
                    return known.value
                if call is mine:
                    return self._call(call, CallerIdentity(user_id, api_key, read), known, start, stack)
            seconds = came + settings.DEADLINE_MS / 1_000 - now
            if known is not None and settings.TIER_CACHE_SECONDS:
                seconds = 0.0
            elif start is not None:
                raise AnswerAwaited(call, seconds)
            if not wait([call], seconds).done:
                return self._otherwise if known is None else known.value

    def _call(
        self,
        call: Future[None],
        identity: CallerIdentity,
        known: _Entry[Found] | None,
        start: Start | None,
        at_end: ExitStack,
    ) -> Found:
        """Call the project's code, and keep its answer. start: for coroutines. at_end: ends `call`."""
        began = time.monotonic()

        def keep(answer: _Answer | None, until: float) -> Found:
            last = known.value if known and self._otherwise is not None else self._otherwise
            value = answer.value if answer else last
            if answer or until > began:
                self._keep(identity, _Entry(until, value, began))
            return value

        def finish(task: Future[Found]) -> None:
            with later, suppress(CancelledError):
                keep(*self._answer(task.result, began))

        answer, until = self._ask(identity)
        if answer and isawaitable(answer.value):
            if start is not None:
                task, later = start(awaited(answer.value)), at_end.pop_all()
                task.add_done_callback(finish)
                raise AnswerAwaited(call, None)
            answer, until = self._answer(partial(resolved, answer.value), began)
        return keep(answer, until)

    def _keep(self, identity: CallerIdentity, entry: _Entry[Found]) -> None:
        names = tuple(identity.names)
        key = (identity.user_id, identity.api_key_hash, *map(identity.read, names))
        if sum(len(entries) for _, entries in self._cached) >= CACHE_SIZE or len(self._cached) > MAX_NAMES:
            self._cached = ()
        for known, entries in self._cached:
            if known == names:
                entries[key] = entry
                return
        self._cached = (*self._cached, (names, {key: entry}))


class TableCache(_Cache[Found]):
    """Cache of `find()`: all rows of a kind, in one query.

    While one thread reads it again, the others use the old value. It is kept while the database cannot be read.
    """

    def get(self) -> Found:
        """Return all rows. No query when cached."""
        if time.monotonic() >= self._until and not (self._is_read and self._under_way):
            self._renew()
        return self._found

    def forget(self) -> None:
        super().forget()
        self._found, self._is_read, self._until, self._began = self._otherwise, False, float("-inf"), float("-inf")

    @_WAITS
    def _renew(self) -> None:
        """Read the rows, unless another thread does: then use the old ones, or wait for that.

        Who has a connection to the database waits for nobody: the other may be waiting for one.
        """
        came = time.monotonic()
        while True:
            call = self._under_way.setdefault(None, mine := Future[None]())
            is_due = time.monotonic() >= self._until and self._began <= came
            if call is mine:
                try:
                    return self._read() if is_due else None
                finally:
                    self._end(None, call)
            if not is_due or self._is_read:
                return None
            if has_connection(*_databases()):
                return self._read()
            if not wait([call], settings.DEADLINE_MS / 1_000).done:
                return None

    def _read(self) -> None:
        began = time.monotonic()
        answer, until = self._ask()
        if answer and began >= self._began:  # else another thread has read them later
            self._found, self._began = answer.value, began
        self._until = until
        self._is_read = self._is_read or time.monotonic() < until
