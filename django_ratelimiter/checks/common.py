"""Shared by several checks: the rules, if there is a database, and objects that settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.utils.module_loading import import_string

from ..conf import problems
from ..models import RuleLimit, RuleSetVersion
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.stored import storage, tables
from ..values.terminal import visible

TAG: Final = "django_ratelimiter"

#: The page with the causes of limits that reject everybody, or nobody, or count twice.
SYMPTOMS: Final = "https://django-tiered-ratelimiter.readthedocs.io/page/howto/symptoms.html"

T = TypeVar("T")

#: The messages of a check.
Found = Iterable[CheckMessage]
Check = Callable[..., list[CheckMessage]]

#: The checks, and those that call Redis, or read many rows, which is only done with `check --deploy`.
CHECKS: Final[list[Check]] = []
DEPLOY_CHECKS: Final[list[Check]] = []

_LEVELS: Final = {"E": checks.Error, "W": checks.Warning, "I": checks.Info}

_known_rules: ContextVar[RuleSet | None] = ContextVar("known_rules", default=None)


def message(number: str, text: str, hint: str) -> CheckMessage:
    """Return a message without control characters; it may name rules and the like. number: begins with its level."""
    return _LEVELS[number[0]](visible(text), hint=visible(hint), id=f"{TAG}.{number}")


def check(find: Callable[[], Found], among: list[Check] = CHECKS) -> Check:
    """Make a system check of a function that returns its messages."""

    def run(**_options: Any) -> list[CheckMessage]:
        return list(find())

    run.__doc__ = find.__doc__
    among.append(run)
    return run


def check_deployed(find: Callable[[], Found]) -> Check:
    """Make a system check that only runs with `check --deploy`."""
    return check(find, DEPLOY_CHECKS)


def are_invalid(*entries: str) -> bool:
    return any(problem.entry in ("RATELIMITER", *entries) for problem in problems())


def import_or_none(path: str) -> Any:
    try:
        return import_string(path)
    except ImportError:
        return None  # Django reports this itself when it needs it


def is_subclass(cls: Any, path: str) -> bool:
    """Return whether `cls` is the class of this path or derived from it. Imports nothing."""
    return isinstance(cls, type) and any(f"{base.__module__}.{base.__qualname__}" == path for base in cls.__mro__)


@contextmanager
def by_rules(rules: RuleSet) -> Iterator[None]:
    """Make checks use these rules, which were just read, instead of each reading them again."""
    token = _known_rules.set(rules)
    try:
        yield
    finally:
        _known_rules.reset(token)


def rules_in_force() -> Iterable[RuleRecord]:
    rules = _known_rules.get()
    if rules is None:
        rules = from_database(storage.load)
    return [rule for rule in rules.rules if rule.mode != "off"] if rules else []


def from_database(read: Callable[[], T]) -> T | None:
    """Return the result of `read`; `None` if there is no database, or it lacks our tables."""
    return _query(lambda: read() if _has_tables() else None)


def tables_are_missing() -> bool:
    """Return whether there is a database that lacks our tables."""
    return _query(_has_tables) is False


def _has_tables() -> bool:
    return all(tables.is_present(model, storage.primary()) for model in (RuleSetVersion, RuleLimit))


def _query(query: Callable[[], T]) -> T | None:
    """Return the result of the query; `None` if there is no database, or it is unavailable."""
    try:
        return query()
    except (DatabaseError, ImproperlyConfigured, AssertionError, RuntimeError):  # the last two: tests without one
        return None
