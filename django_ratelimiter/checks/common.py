"""What a system check is, and what several of them read: the rules, settings, and objects that settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from django.core import checks
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.utils.module_loading import import_string

from ..conf import problems
from ..conf.values import TrustedProxies
from ..models import RuleLimit, RuleSetVersion
from ..rules.records import RuleRecord
from ..rules.ruleset import RuleSet
from ..rules.stored import storage, tables
from ..values.terminal import visible

TAG: Final = "django_ratelimiter"

#: The page with the causes of limits that reject everybody, or nobody, or count twice.
SYMPTOMS: Final = "https://django-tiered-ratelimiter.readthedocs.io/page/howto/symptoms.html"

T = TypeVar("T")

#: What a check has found: for each message the texts that it names.
Found = Iterable[tuple[str, ...]]
Check = Callable[..., list[CheckMessage]]

#: The checks that do not call Redis.
CHECKS: Final[list[Check]] = []

_LEVELS: Final = {"E": checks.Error, "W": checks.Warning, "I": checks.Info}

#: The rules that checks use instead of reading them.
known_rules: ContextVar[RuleSet | None] = ContextVar("known_rules", default=None)


def check(number: str, text: str, hint: str) -> Callable[[Callable[[], Found]], Check]:
    """Make a system check of a function that returns what it has found.

    number: the id. text, hint: what each message says, with what was found in place of the braces. Nothing is said if
    the check needs a setting of ours that is invalid and has no default: E001 names it.
    """

    def decorate(find: Callable[[], Found]) -> Check:
        def run(**_options: Any) -> list[CheckMessage]:
            try:
                return [message(number, text.format(*each), hint.format(*each)) for each in find()]
            except ImproperlyConfigured:
                if problems():
                    return []
                raise

        CHECKS.append(run)
        return checks.register(run, TAG)

    return decorate


def message(number: str, text: str, hint: str) -> CheckMessage:
    """Return a message without control characters; it may name rules and the like. number: begins with its level."""
    return _LEVELS[number[0]](visible(text), hint=visible(hint), id=f"{TAG}.{number}")


def together(names: Iterable[str]) -> Found:
    """Return what was found for one message that names all of these; for none if there are no names."""
    return [(joined,)] if (joined := ", ".join(names)) else []


def are_trusted(proxies: TrustedProxies) -> bool:
    """Return whether any proxy is trusted."""
    return bool(proxies.hops or proxies.networks or proxies.unix)


def import_or_none(path: str) -> Any:
    try:
        return import_string(path)
    except ImportError:
        return None  # Django reports this itself when it needs it


def is_subclass(cls: Any, path: str) -> bool:
    """Return whether `cls` is the class of this path or derived from it. Imports nothing."""
    return isinstance(cls, type) and any(f"{base.__module__}.{base.__qualname__}" == path for base in cls.__mro__)


def rules_in_force() -> Iterable[RuleRecord]:
    rules = known_rules.get()
    if rules is None:
        rules = from_database(storage.load)
    return [rule for rule in rules.rules if rule.mode != "off"] if rules else []


def from_database(read: Callable[[], T], *, needs_tables: bool = True) -> T | None:
    """Return the result of `read`; `None` if there is no database, or it is unavailable, or lacks our tables."""
    try:
        return read() if not needs_tables or has_tables() else None
    except (DatabaseError, ImproperlyConfigured, AssertionError, RuntimeError):  # the last two: tests without one
        return None


def has_tables() -> bool:
    """Return whether the database has our tables."""
    return all(tables.is_present(model, storage.primary()) for model in (RuleSetVersion, RuleLimit))
