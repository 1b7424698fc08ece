"""The rule set that this process decides by: loaded once, kept, and renewed when the engine calls it stale."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from django.db import Error
from django.db.models.signals import post_delete, post_save
from django.utils.asyncio import async_unsafe

from ..conf import settings
from ..connection import get_engine
from ..engine.base import Version
from ..engine.resilience import when_recovered
from ..exceptions import RulesUnavailable, StaleRules
from ..models import Rule, RuleLimit, Tier
from ..signals import rules_changed, rules_committed
from . import versions
from .entries import access_list
from .ruleset import NO_VERSION, RuleSet
from .tiers import standing_for, tier_for
from .versions import (
    editing,
    enforcement_enabled,
    invalidate,
    last_publish_failed,
    republish,
    switch_enforcement,
)

__all__ = [
    "access_list",
    "confirm",
    "connect",
    "current_rules",
    "editing",
    "enforcement_enabled",
    "invalidate",
    "is_time_to_ask",
    "last_publish_failed",
    "reload",
    "renewed_by_age",
    "republish",
    "standing_for",
    "switch_enforcement",
    "tier_for",
]

logger = logging.getLogger("django_ratelimiter")

#: Seconds to wait before the database is asked again after it failed.
RETRY_SECONDS: Final = 1.0

#: Seconds after which a process asks the database whether enforcement was stopped, while the engine cannot tell.
SWITCH_SECONDS: Final = 0.8

#: For what may wait for the database or for another thread: on an event loop it raises SynchronousOnlyOperation.
_WAITS: Final = async_unsafe("The rules have to be read from the database; `limiter.acheck` does it in a thread.")


class _Kept:
    """What this process keeps; times are monotonic seconds.

    confirmed_at: when the rules were last found to be in force. asked_at: when that was last asked.
    look_at: when the database may next be asked whether enforcement was stopped.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  # one reload in flight
        self.rules = RuleSet(NO_VERSION)
        self.outdated = True
        self.confirmed_at = float("-inf")
        self.asked_at = float("-inf")
        self.failed_at = float("-inf")
        self.look_at = float("-inf")
        self.told = NO_VERSION  # the version that receivers were last told of


_kept = _Kept()


def current_rules() -> RuleSet:
    """The rules to decide by. No query when warm; the last good ones where the database cannot be read."""
    uncommitted = versions.uncommitted_rules()
    if uncommitted is not None:
        return uncommitted
    if _is_outdated():
        _load_if_outdated()
    return _kept.rules


def reload(stale: StaleRules, seen: RuleSet) -> RuleSet:
    """Answer the engine's `stale` to the rules `seen`: the committed rules, put in force where none were.

    Raises RulesUnavailable where the database cannot be read: only failure policies may decide then.
    """
    behind = None if stale.number is None else Version(stale.number, stale.epoch)
    renewed = _renewed(seen, behind)
    return _reload(seen, behind) if renewed is None else renewed


def confirm() -> None:
    """Note that the rules of this process have just been found to be in force."""
    _kept.confirmed_at = _kept.asked_at = time.monotonic()


def is_time_to_ask() -> bool:
    """Whether a request that meets no rule should ask the engine for the version; one asks, the others go on."""
    now = time.monotonic()
    if now - _kept.asked_at < settings.VERSION_CHECK_INTERVAL:
        return False
    _kept.asked_at = now
    return True


def renewed_by_age() -> RuleSet:
    """The rules while the engine is out of reach: read again once they are RULES_MAX_AGE old.

    Whether they are enforced at all is read each SWITCH_SECONDS. Within a transaction that edits them neither is: what
    it sees is for itself alone.
    """
    if versions.uncommitted_rules() is None:
        if _is_aged():
            _load_if_aged()
        elif _is_time_to_look():
            _load_if_switched()
    return current_rules()


def connect() -> None:
    """Number what is saved outside `editing`, and read the rules anew where they may have changed unseen."""
    for model in (Tier, Rule, RuleLimit):
        for signal in (post_save, post_delete):
            signal.connect(_number_edit, sender=model, dispatch_uid="django_ratelimiter.number_edit")
    rules_committed.connect(_mark_outdated, dispatch_uid="django_ratelimiter.mark_outdated")
    # What was committed meanwhile may not have been published; the first call tells the engine what was read then.
    when_recovered(_mark_outdated)


def _number_edit(sender: type, instance: Any, **kwargs: Any) -> None:
    if not versions.is_editing():
        done = "saved" if "created" in kwargs else "deleted"
        invalidate(summary=f"{sender._meta.verbose_name} {instance} {done}")  # type: ignore[attr-defined]


def _mark_outdated(**kwargs: Any) -> None:
    _kept.outdated = True
    _kept.failed_at = float("-inf")


def _reaches(rules: RuleSet, version: Version | None) -> bool:
    return version is None or rules.version.order >= version.order


def _renewed(seen: RuleSet, behind: Version | None) -> RuleSet | None:
    """The rules that another thread has just read; `None` = it is ours to read them."""
    kept, shared = _kept.rules, versions.uncommitted_rules() is None
    if shared and kept is not seen and not _kept.outdated and _reaches(kept, behind):
        return kept
    if time.monotonic() - _kept.failed_at <= RETRY_SECONDS:  # those who waited shall not wait once more each
        raise RulesUnavailable("The rules are stale, and the database could not be read just now.")
    return None


@_WAITS
def _reload(seen: RuleSet, behind: Version | None) -> RuleSet:
    rules = _reread(seen, behind)
    _tell_of_change()
    return rules


def _reread(seen: RuleSet, behind: Version | None) -> RuleSet:
    with _kept.lock:
        renewed = _renewed(seen, behind)
        if renewed is not None:
            return renewed
        try:
            rules = versions.load()
            if behind is not None and not _reaches(rules, behind):
                versions.begin_epoch(behind)
                rules = versions.load()
        except Error as error:
            _kept.failed_at = time.monotonic()
            raise RulesUnavailable("The rules are stale and the database cannot be read.") from error
        if versions.uncommitted_rules() is None:
            _keep(rules)
        if behind is None:
            get_engine().publish(rules.version)
        return rules


def _is_outdated() -> bool:
    return _kept.outdated and time.monotonic() - _kept.failed_at > RETRY_SECONDS


@_WAITS
def _load_if_outdated() -> None:
    with _kept.lock:
        if _is_outdated():
            _load_or_keep()
    _tell_of_change()


def _is_aged() -> bool:
    return time.monotonic() - _kept.confirmed_at > settings.RULES_MAX_AGE


@_WAITS
def _load_if_aged() -> None:
    with _kept.lock:
        if _is_aged():
            _load_or_keep()
            confirm()  # even if it failed: the database is asked once per RULES_MAX_AGE
    _tell_of_change()


def _is_time_to_look() -> bool:
    return time.monotonic() >= _kept.look_at


@_WAITS
def _load_if_switched() -> None:
    """Read the rules again if the database says otherwise than they do whether they are enforced; one asks it."""
    with _kept.lock:
        if not _is_time_to_look():
            return
        _kept.look_at = time.monotonic() + SWITCH_SECONDS
    try:
        switched = enforcement_enabled() is not _kept.rules.enforced
    except Error:  # each attempt may take as long as a connection does to fail
        _kept.look_at = time.monotonic() + settings.RULES_MAX_AGE
        return
    if switched:
        with _kept.lock:
            _load_or_keep()
        _tell_of_change()


def _load_or_keep() -> None:
    try:
        _keep(versions.load())
    except Error:
        _kept.failed_at = time.monotonic()
        logger.exception("The rules cannot be read; deciding by version %s.", _kept.rules.version)


def _tell_of_change() -> None:
    """Send `rules_changed` if this process has another version than it last told of; not under the lock."""
    with _kept.lock:
        version = _kept.rules.version
        if version == _kept.told:
            return
        _kept.told = version
    logger.info("Deciding by version %s.", version.number, extra={"version": version.number})
    rules_changed.send_robust(RuleSet, version=version)


def _keep(rules: RuleSet) -> None:
    for rule, reason in rules.left_out:
        logger.error("Rule %s is not in force: %s", rule, reason)
    _kept.rules, _kept.outdated = rules, False
    confirm()
