"""The exceptions of this package. The lowest layer: this module imports nothing of the project."""

from __future__ import annotations

import os
from importlib import import_module
from traceback import walk_tb
from typing import Any, Final

#: Parts of the paths of files that are not of the project.
_LIBRARIES: Final = (os.path.dirname(os.__file__), "site-packages", "dist-packages")

#: Packages whose messages name settings, and not their values.
_PLAIN: Final = ("django", "django_ratelimiter", "django_redis", "redis")


class RateLimiterError(Exception):
    """Base class of all exceptions of this package."""


class StaleRules(RateLimiterError):
    """The caller's rule set is older than the current one; nothing was charged.

    `number` and `epoch` are the version that the engine holds. `number` is `None` if it holds none (a flush, an
    eviction, a new server). Then only a caller that has just read the primary database may set it, with
    `engine.publish`.
    """

    def __init__(self, number: int | None, epoch: int = 0) -> None:
        stored = "no version" if number is None else f"version {number} (epoch {epoch})"
        super().__init__(f"The engine holds {stored}; the rules of this call are not the ones in force.")
        self.number = number
        self.epoch = epoch


class EngineUnavailable(RateLimiterError):
    """The engine did not answer: it is out of reach, too slow, or rejected the command. The cause is chained."""


class WrongRedis(RateLimiterError):
    """Redis does not hold the rules of this database, so nothing was collected or looked up. Its text says why."""


class RulesUnavailable(RateLimiterError):
    """The rules are known to be stale and the database cannot be read, so no decision can be made by them."""


class LimitExceeded(RateLimiterError):
    """The turn or the cost was not allowed. `decision` has the details. `retry_after`: seconds; `None` = never."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision
        self.retry_after: float | None = decision.retry_after
        rules = ", ".join(dict.fromkeys(str(result.rule) for result in decision.rejected_by))
        when = "will never pass" if self.retry_after is None else f"would pass in {self.retry_after:.3f} s"
        super().__init__(f"Rejected by {rules}; {when}.")

    def __reduce__(self) -> tuple[type[LimitExceeded], tuple[Any]]:
        return type(self), (self.decision,)


class AccessDenied(RateLimiterError):
    """An access entry denies all requests of the caller. record: the entry."""

    def __init__(self, record: Any) -> None:
        super().__init__(f"An access entry denies this {record.kind}.")
        self.record = record


def told_safely(error: BaseException) -> str:
    """Return an exception as text: its message only if that names no values of a project's settings.

    So do the messages of imports and syntax errors, and those of Django, of Redis clients and of this package.
    """
    frames = [frame for frame, _line in walk_tb(error.__traceback__)]
    package = str(frames[-1].f_globals.get("__name__")).partition(".")[0] if frames else ""
    if isinstance(error, ImportError | SyntaxError):
        return f"{type(error).__name__}: {error}"
    return str(error) if package in _PLAIN else f"{raised_at(error)} (its message may hold a secret and is not shown)"


def raised_at(error: BaseException) -> str:
    """Return the type of an exception of a project's code, and the last line outside libraries that led to it.

    Its message may contain a secret, such as the API key that a KeyError names.
    """
    places = [f"{frame.f_code.co_filename}:{line}" for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in places if not any(library in place for library in _LIBRARIES)]
    return f"{type(error).__name__} at {(own or places)[-1]}"


def __getattr__(name: str) -> Any:
    """`Ratelimited` of the decorators, for code from django-ratelimit. Lazy, because it needs Django."""
    if name == "Ratelimited":
        return import_module(f"{__package__}.decorators").Ratelimited
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
