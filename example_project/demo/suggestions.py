"""Requests to try by hand, after the traffic of the checks."""

from __future__ import annotations

from typing import Final, NamedTuple

from .scenario import FREE_KEYS, Caller


class Suggestion(NamedTuple):
    """A request for curl. allowed: whether the first one is allowed after the traffic. remark: what it shows."""

    path: str
    caller: Caller
    allowed: bool
    remark: str

    def command(self, url: str) -> str:
        """Return the shell command. The client's address is curl's own."""
        headers = [f"-H '{name}: {value}' " for name, value in self.caller.headers.items() if name != "X-Forwarded-For"]
        return f"curl -i {''.join(headers)}{url}{self.path}"


_HERE: Final = "127.0.0.1"

SUGGESTIONS: Final = (
    Suggestion("/orders/", Caller("anonymous", _HERE), True, "allowed, 10 a day for your address"),
    Suggestion("/api/search/", Caller("pro", _HERE, user="paula"), True, "allowed, a bucket of 50 that has refilled"),
    Suggestion("/orders/", FREE_KEYS[1], False, "rejected, the traffic has used up this key's day"),
)
