"""The demo's traffic, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..catalogue import RULES, Rule

#: Duration of the traffic, in seconds.
SECONDS: Final = 20.0
#: Number of connections, each with one request at a time.
CLIENTS: Final = 32


@dataclass(frozen=True)
class Caller:
    """A client. address: of the client; user: whose token, API key: which key; `None` = without."""

    tier: str
    address: str
    user: str | None = None
    api_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Return the header fields that identify the caller."""
        headers = {"X-Forwarded-For": self.address}
        if self.user:
            headers["Authorization"] = f"Token token-{self.user}"
        if self.api_key:
            headers["X-API-Key"] = self.api_key
        return headers

    def partition(self, rule: Rule) -> str:
        """Return what the counters of a rule are split by for this caller."""
        values = {"ip": self.address, "user": self.user, "api_key": self.api_key}
        found = [values[name] or (self.address if rule.missing == "ip" else None) for name in rule.partition_by]
        return " ".join(str(value) for value in found)


@dataclass(frozen=True)
class Stream:
    """`count` requests of each caller for one path, spread evenly from `begin` to `end` (shares of the time)."""

    path: str
    callers: tuple[Caller, ...]
    count: int
    begin: float = 0.0
    end: float = 1.0
    method: str = "GET"

    def rules_for(self, caller: Caller) -> tuple[Rule, ...]:
        """Return the rules that match these requests."""
        return tuple(
            rule
            for rule in RULES
            if rule.path == self.path
            and (not rule.methods or self.method in rule.methods)
            and rule.limits_for(caller.tier)
        )


def _from(tier: str, *addresses: str) -> tuple[Caller, ...]:
    return tuple(Caller(tier, address) for address in addresses)


NADIA: Final = Caller("anonymous", "198.51.100.9", user="nadia")
FLORA: Final = Caller("free", "198.51.100.20", user="flora")
FRED: Final = Caller("free", "198.51.100.21", user="fred")
PAULA: Final = Caller("pro", "198.51.100.30", user="paula")
ERIK: Final = Caller("enterprise", "198.51.100.40", user="erik")
#: Flora and Fred share the address of their office.
OFFICE: Final = (Caller("free", "203.0.113.7", user="flora"), Caller("free", "203.0.113.7", user="fred"))

TRIAL_KEY: Final = Caller("anonymous", "192.0.2.10", api_key="key-trial")
FREE_KEYS: Final = (
    Caller("free", "192.0.2.21", api_key="key-free-1"),
    Caller("free", "192.0.2.22", api_key="key-free-2"),
)
PRO_KEY: Final = Caller("pro", "192.0.2.30", api_key="key-pro")
ENTERPRISE_KEY: Final = Caller("enterprise", "192.0.2.40", api_key="key-enterprise")

#: Each worker answers less than the thousand calls in an hour whose callers are all counted: after these they are
#: estimated, and the lists of top callers would not agree with what was sent.
STREAMS: Final = (
    Stream("/prices/", _from("anonymous", "198.51.100.1", "2001:db8:1::7"), 60),
    Stream("/prices/", FREE_KEYS[:1], 130),
    Stream("/orders/", (TRIAL_KEY,), 20),
    Stream("/orders/", FREE_KEYS, 60),
    # All at once, on 32 connections: many requests compete for the last units of the quota.
    Stream("/orders/", (PRO_KEY,), 140, begin=0.3, end=0.3),
    Stream("/orders/", (ENTERPRISE_KEY,), 115),
    Stream("/api/search/", (*_from("anonymous", "198.51.100.8"), NADIA), 25),
    # Rejections by the office's address must not charge its users: at home each can still use the rest.
    Stream("/api/search/", OFFICE, 50, end=0.45),
    Stream("/api/search/", (FLORA, FRED), 50, begin=0.5),
    Stream("/api/search/", (PAULA,), 180),
    Stream("/api/search/", (ERIK,), 270),
    Stream("/api/export/", (FLORA,), 40),
    Stream("/api/export/", (PAULA,), 100),
    Stream("/api/reports/", (*_from("anonymous", "198.51.100.8"), FREE_KEYS[0], PRO_KEY, ENTERPRISE_KEY), 30),
    Stream("/sign-in/", _from("anonymous", "198.51.100.2", "198.51.100.3", "198.51.100.4"), 10, method="POST"),
)
