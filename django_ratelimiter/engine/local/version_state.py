"""When the engine has to be asked for the version of the rules, so that new rules are heard of."""

from __future__ import annotations

from math import inf

from ..base import Version


class VersionState:
    """The latest version that the engine has confirmed. Times are monotonic seconds.

    interval: seconds after which the engine is asked, whatever is known here.
    """

    __slots__ = ("_due_at", "_interval", "_version")

    def __init__(self, interval: float) -> None:
        self._interval, self._due_at = interval, -inf
        self._version: int | Version | None = None

    def is_current(self, version: int | Version | None, now: float) -> bool:
        """Return whether the engine has confirmed this version not long ago; `None` = none is asked for."""
        return version is None or (now < self._due_at and (version is self._version or version == self._version))

    def claim(self, version: int | Version, now: float) -> None:
        """Note that the version is being asked for, so that nobody else need."""
        if version == self._version:
            self._due_at = max(self._due_at, now + self._interval)

    def confirm(self, version: int | Version | None, now: float) -> None:
        """Note that the engine was asked with this version then, and found it to be in force."""
        if version is not None:
            self._version, self._due_at = version, max(now + self._interval, self._due_at)
