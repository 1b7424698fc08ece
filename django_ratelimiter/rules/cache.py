"""The rule set of this process: loaded once, cached, and reloaded when the engine reports it as stale."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, transaction
from django.db.models.signals import post_delete, post_migrate, post_save, pre_delete, pre_save
from django.utils.asyncio import async_unsafe
from django.utils.translation import override

from .. import backend
from ..backend import get_engine
from ..conf import settings
from ..databases import is_in_transaction
from ..engine.base import Version
from ..engine.breaker import on_recovered
from ..engine.locks import freed_by_fork
from ..exceptions import EngineUnavailable, RulesUnavailable, StaleRules
from ..logs import logger
from ..signals import rules_changed, rules_committed
from ..values.terminal import visible
from .inline import rule_of
from .reading import Turns, turns
from .records import UNREAD
from .ruleset import NO_VERSION, RuleSet
from .stored import published, storage, tables, uncommitted, versions
from .stored.storage import access_list, enforcement_enabled
from .stored.tables import models
from .stored.versions import editing, invalidate, last_publish_failed, publish_problem, republish, switch_enforcement
from .tiers import entitlement_for
from .ttl_cache import RETRY_SECONDS

__all__ = [
    "access_list",
    "connect",
    "current_rules",
    "editing",
    "enforcement_enabled",
    "entitlement_for",
    "invalidate",
    "is_version_check_due",
    "last_publish_failed",
    "latest_rules",
    "mark_confirmed",
    "publish_problem",
    "reload",
    "republish",
    "rules_during_outage",
    "switch_enforcement",
]

#: Seconds between two checks in the database whether enforcement was stopped, while the engine is out of reach.
SWITCH_SECONDS: Final = 0.8

UNREADABLE: Final = "The rules are stale, and the database was just being edited or could not be read."
SLOW: Final = "The rules are stale, and the database does not answer in time."
OLDER: Final = (
    "The database returns rules of version {0.number}, older than version {1.number}, which is in force: a cache of "
    "queries or a replica answers for it. With django-cachalot, set CACHALOT_UNCACHABLE_APPS = ['django_ratelimiter']."
)

#: For calls that may wait for the database or another thread: on an event loop it raises SynchronousOnlyOperation.
_WAITS: Final = async_unsafe("The rules have to be read from the database; `limiter.acheck` does it in a thread.")


class _State:
    """The cached rules, with times in monotonic seconds.

    confirmed_at: when the rules were last found to be current. checked_at: when that was last checked.
    switch_check_at: when to check next in the database whether enforcement was stopped.
    """

    def __init__(self) -> None:
        self.lock = freed_by_fork(Lock())  # never held during a query
        self.rules = self.unread = RuleSet(NO_VERSION)
        self.outdated = True
        self.confirmed_at = float("-inf")
        self.checked_at = float("-inf")
        self.failed_at = float("-inf")
        self.problem = UNREADABLE  # at that time
        self.copied_at = float("-inf")  # when the copy in Redis was read last
        self.switch_check_at = float("-inf")
        self.notified = NO_VERSION  # the version that receivers last got
        self.published: RuleSet | None = None  # the rules whose version the engine did not hold last time
        self.reread_at = float("inf")  # without Redis, no other process can report that the rules are stale


_state = _State()
#: Of reads of the copy.
copying: Final = Turns()


def current_rules() -> RuleSet:
    """Return the current rules. No query when cached; the last good ones if the database cannot be read."""
    if uncommitted.any_open and (edited := versions.uncommitted_rules()) is not None:
        return edited
    if _state.outdated and _is_outdated():
        _load_if(_is_outdated, _load_or_keep)
    return _state.rules


def latest_rules() -> RuleSet:
    """Return the current rules, read again if another process has changed them: one query of one row."""
    rules, version = current_rules(), storage.committed_version()
    if rules.compared_as is not None and rules.version.order < version.order:
        try:
            return reload(StaleRules(*version), rules)
        except (RulesUnavailable, EngineUnavailable):
            pass  # the known ones are better than none
    return rules


def reload(stale: StaleRules, seen: RuleSet) -> RuleSet:
    """Return the committed rules after the engine's `stale` to the rules `seen`; publish them if none were.

    Raises RulesUnavailable if the database cannot be read in time, or not repaired without waiting for a lock: then
    only failure policies may decide. A transaction that edits rules uses its own, and publishes nothing.
    """
    if (edited := versions.uncommitted_rules()) is not None:
        return edited
    behind = None if stale.number is None else Version(stale.number, stale.epoch)
    renewed = _renewed(seen, behind)
    return _reload(seen, behind) if renewed is None else renewed


def mark_confirmed(rules: RuleSet) -> None:
    """Record that these rules are current. Uncommitted ones are ignored, because they are compared with nothing."""
    if rules.compared_as is not None:
        now = _state.confirmed_at = _state.checked_at = time.monotonic()
        if now >= _state.reread_at:
            _state.outdated, _state.reread_at = True, float("inf")


def is_version_check_due(rules: RuleSet) -> bool:
    """Return whether a request that no rule matches should check the version; one request per interval does.

    Uncommitted rules are not compared with any version.
    """
    if rules.compared_as is None:
        return False
    now = time.monotonic()
    if now - _state.checked_at < settings.VERSION_CHECK_INTERVAL:
        return False
    _state.checked_at = now
    return True


def rules_during_outage() -> RuleSet:
    """Return the rules while the engine is out of reach: read again after RULES_MAX_AGE.

    The switch for all enforcement is read every SWITCH_SECONDS. A transaction that edits rules sees only its own.
    """
    if versions.uncommitted_rules() is None:
        now = time.monotonic()
        if _is_aged():
            _load_if(_is_aged, _load_or_keep, apart=True)
        elif now >= _state.switch_check_at:
            _state.switch_check_at = now + SWITCH_SECONDS  # only this thread checks
            _load_if(lambda: True, _load_if_switched, apart=True)
    return current_rules()


def connect() -> None:
    """Connect signals: number what is saved outside `editing`, and reload rules that may have changed otherwise."""
    for model in (models.Tier, models.Rule, models.RuleLimit):
        for signal in (pre_save, pre_delete):
            signal.connect(versions.number_first, sender=model, dispatch_uid="django_ratelimiter.number_first")
        for signal in (post_save, post_delete):
            signal.connect(_number_edit, sender=model, dispatch_uid="django_ratelimiter.number_edit")
    for signal in (post_save, post_delete):
        signal.connect(_on_access_entry, sender=models.AccessEntry, dispatch_uid="django_ratelimiter.copy_entries")
    post_save.connect(_number_anew, sender=models.RuleSetState, dispatch_uid="django_ratelimiter.number_anew")
    rules_committed.connect(_mark_outdated, dispatch_uid="django_ratelimiter.mark_outdated")
    post_migrate.connect(
        _on_migration, sender=apps.get_app_config(tables.APP), dispatch_uid="django_ratelimiter.note_migration"
    )
    # A version that was committed meanwhile may not be published; the first call sends the version that was read.
    on_recovered(_mark_outdated)


def _number_edit(sender: type, instance: Any, **signal: Any) -> None:
    done = "saved" if "created" in signal else "deleted"

    def summary() -> str:
        with override("en"):  # as all summaries; a limit's text is of words that can be translated
            return f"{sender._meta.verbose_name} {instance} {done}"  # type: ignore[attr-defined]

    versions.number(summary)


def _number_anew(raw: bool, **signal: Any) -> None:
    if raw:  # from a fixture
        versions.number_anew()


def _on_access_entry(using: str, **_signal: Any) -> None:
    transaction.on_commit(published.write_entries, using=using)


def _mark_outdated(**kwargs: Any) -> None:
    _state.outdated = True
    _state.failed_at = float("-inf")


def _on_migration(using: str = "", **_signal: Any) -> None:
    """Read the rules again: `flush` sends this signal, too, but those of its deletions are missing."""
    tables.forget()
    _mark_outdated()
    is_flush = using == storage.primary() and not backend.are_tests_running()  # each test may end with one
    if is_flush and tables.is_present(models.RuleSetState, using) and not storage.state().exists():
        versions.number_anew()


def _reaches(rules: RuleSet, version: Version | None) -> bool:
    return version is None or rules.version.order >= version.order


def _renewed(seen: RuleSet, behind: Version | None) -> RuleSet | None:
    """Return the rules that another thread has just read; `None` = this thread must read them."""
    current = _state.rules
    if current is not seen and not _state.outdated and _reaches(current, behind):
        return current
    if time.monotonic() - _state.failed_at <= RETRY_SECONDS:  # those that waited must not each wait again
        raise RulesUnavailable(_state.problem)
    return None


@_WAITS
def _reload(seen: RuleSet, behind: Version | None) -> RuleSet:
    rules = _in_turn(partial(_reread, seen, behind), partial(_renewed, seen, behind))
    if rules is None:
        raise RulesUnavailable(SLOW)
    _send_if_changed()
    return rules


def _in_turn(
    read: Callable[[], RuleSet], found: Callable[[], RuleSet | None], *, apart: bool = False
) -> RuleSet | None:
    """Return the rules that `found` returns or `read` reads, see `Turns.take`; `None` = not in time."""
    if not apps.is_installed(tables.APP):
        return read()
    rules = turns.take(storage.primary(), read, found, _send_if_changed, apart=apart)
    if rules is None:
        _note_unreadable(SLOW)
    return rules


def _reread(seen: RuleSet, behind: Version | None) -> RuleSet:
    try:
        rules = storage.load()
        if behind is not None and not _reaches(rules, behind):
            rules = _reaching(behind)
            if not _reaches(rules, behind):
                _note_failure(problem := OLDER.format(rules.version, behind))
                raise RulesUnavailable(problem)
    except Error as error:
        _note_unreadable()
        raise RulesUnavailable("The rules are stale and the database cannot be read now.") from error
    if (edited := versions.uncommitted_rules()) is not None:  # it contains the new epoch
        return edited
    if behind is None:
        _publish_missing(rules, seen)
    _keep(rules)
    return rules


def _publish_missing(rules: RuleSet, seen: RuleSet) -> None:
    """Publish a version that the engine does not hold. seen: the rules that were compared with none."""
    engine: Any = get_engine()
    if seen is _state.published and hasattr(engine, "reconnect"):
        engine.reconnect()  # it was published on another server than the one that does not hold it
    engine.publish(rules.version)
    _state.published = rules


def _reaching(behind: Version) -> RuleSet:
    """Return the committed rules of this version or a later one. If there are none, begin a new epoch of versions."""
    rules = storage.load_beside()
    if rules is None or not _reaches(rules, behind):
        versions.begin_epoch(behind)
        rules = storage.load()
    return rules


def _note_failure(problem: str = UNREADABLE) -> None:
    """Let no thread read the rules again for RETRY_SECONDS, unless perhaps only this open transaction cannot."""
    if not is_in_transaction(storage.primary()):
        _state.failed_at, _state.problem = time.monotonic(), problem


def _is_outdated() -> bool:
    return _state.outdated and time.monotonic() - _state.failed_at > RETRY_SECONDS


def _is_aged() -> bool:
    return time.monotonic() - max(_state.confirmed_at, _state.failed_at) > settings.RULES_MAX_AGE


@_WAITS
def _load_if(is_due: Callable[[], bool], load: Callable[[], RuleSet], *, apart: bool = False) -> None:
    """Reload the rules, unless another thread has done so. If the database does not answer in time, keep them."""
    _in_turn(load, lambda: None if is_due() else _state.rules, apart=apart)
    _send_if_changed()


def _load_if_switched() -> RuleSet:
    """Reload the rules if enforcement was stopped or resumed in the database."""
    try:
        is_switched = enforcement_enabled() is not _state.rules.enforced
    except Error:  # each attempt may take as long as the connection timeout
        if not is_in_transaction(storage.primary()):
            _state.switch_check_at = time.monotonic() + settings.RULES_MAX_AGE
        return _state.rules
    return _load_or_keep() if is_switched else _state.rules


def _load_or_keep() -> RuleSet:
    try:
        _keep(storage.load())
    except Error:
        _note_unreadable()
        logger.exception("The rules cannot be read; deciding by version %s.", _state.rules.version)
    return _state.rules


def _note_unreadable(problem: str = UNREADABLE) -> None:
    """Record that the database cannot be read, and use the copy in Redis if it is later than the known rules.

    Not in an open transaction: perhaps only that cannot read.
    """
    using, since = storage.primary(), time.monotonic() - RETRY_SECONDS
    if not is_in_transaction(using):
        copying.take(using, _use_copy, lambda: _state.rules if _state.copied_at > since else None, bool, apart=True)
    _note_failure(problem)  # from now on, nobody waits


def _use_copy() -> RuleSet:
    """Use the copy. Without it, WITHOUT_RULES decides in a process that has never read rules."""
    copy, is_first = None, _state.rules is _state.unread
    for pause in (0.0, *(published.PAUSES if is_first else ())):  # the first call has to connect
        time.sleep(pause)
        with suppress(EngineUnavailable):
            copy = published.read_copy()
            break
    known = _state.rules  # the database may have answered meanwhile
    if copy is not None and (known.is_copy or copy.rules.version.order > known.version.order):
        storage.use_copied_entries(copy.entries)
        if copy.rules is not known:
            _state.rules, _state.outdated = copy.rules, True
            logger.error("Deciding by the copy of the rules in Redis, of version %s.", copy.rules.version)
    elif known is _state.unread:
        _state.rules, _state.outdated = rules_unread(policy := settings.WITHOUT_RULES), True
        logger.error("Neither the database nor Redis has returned rules: WITHOUT_RULES, %r, decides.", policy)
    _state.copied_at = time.monotonic()
    return _state.rules


def _send_if_changed() -> None:
    """Send `rules_changed` if the version differs from the last one sent. Call it without the lock."""
    with _state.lock:
        version = _state.rules.version
        if version == _state.notified:
            return
        _state.notified = version
    logger.info("Deciding by version %s.", version.number, extra={"version": version.number})
    rules_changed.send_robust(RuleSet, version=version)


def rules_unread(policy: str) -> RuleSet:
    """Return the rules of a process that could read none: this failure policy decides each request."""
    rule = rule_of(UNREAD, 1_000_000, 1, "", failure_policy=policy)
    return RuleSet(NO_VERSION, rules=[replace(rule, partition_by=())])


def _keep(rules: RuleSet) -> None:
    for rule, reason in rules.left_out:
        logger.error("Rule %s is not in force: %s", visible(rule), visible(reason))
    _state.rules, _state.outdated = rules, False
    _state.reread_at = float("inf")
    with suppress(ImproperlyConfigured):  # an engine that cannot be made: failure policies decide
        if published.is_memory():
            _state.reread_at = time.monotonic() + settings.RULES_MAX_AGE
    if rules is storage.NO_TABLES:  # look again soon: another process may run `migrate`
        _state.outdated, _state.failed_at = True, time.monotonic()
    if rules.compared_as is not None:
        _state.confirmed_at = _state.checked_at = time.monotonic()
