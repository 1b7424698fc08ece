"""When to ask the engine for the version of the rules, to notice new rules."""

from __future__ import annotations

from math import inf

from ..base import Version


class VersionState:
    """The latest version that the engine has confirmed. Times are monotonic seconds.

    interval: seconds after which the engine is asked in any case.
    """

    __slots__ = ("_due_at", "_interval", "_version")

    def __init__(self, interval: float) -> None:
        self._interval, self._due_at = interval, -inf
        self._version: int | Version | None = None

    def is_current(self, version: int | Version | None, now: float) -> bool:
        """Return whether the engine has recently confirmed this version; `None` = no version is needed."""
        return version is None or (now < self._due_at and (version is self._version or version == self._version))

    def claim(self, version: int | Version, now: float) -> None:
        """Record that a call for the version is in progress, so that no other call is made for it."""
        if version == self._version:
            self._due_at = max(self._due_at, now + self._interval)

    def confirm(self, version: int | Version | None, now: float) -> None:
        """Record that the engine was called with this version at `now`, and it was current."""
        if version is not None:
            self._version, self._due_at = version, max(now + self._interval, self._due_at)
