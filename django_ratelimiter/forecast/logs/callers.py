"""The callers of a log's requests: identities, tiers and access entries, from the log and the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

from django.contrib.auth import get_user_model

from ...conf import settings
from ...databases import spelled
from ...identity import Identity, access_entry_for, client_ip, hash_api_key
from ...identity.proxies import client_address, is_proxy, network_around
from ...limiter.charges import NO_ENTITLEMENT
from ...plans import pk_from
from ...rules.cache import access_list
from ...rules.ruleset import RuleSet
from ...rules.tiers import Entitlement, callers_differ, is_known_api_key, resolve_api_key
from ...values.access import NOBODY
from .formats import AccessLogLine

#: Maximum number of callers in memory: those of the latest lines. About 0.7 KB each.
MAX_CALLERS: Final = 80_000

#: If "tier" is mapped to a field, the field contains the slug of the caller's tier.
TIER: Final = "tier"

#: What a caller may have under the earlier and the changed rules. Equal ones share one object.
Entitlements = tuple[Entitlement, Entitlement]
NOBODYS: Final = (NO_ENTITLEMENT, NO_ENTITLEMENT)


class LoggedCaller(Identity):
    """A caller of some lines, with the values that the log contains. There are many, so it is small.

    entitlements: what it may have under the earlier and the changed rules. lacks: identities that every request has, or
    that the lines name, and that are not known: no address but that of a trusted proxy, or a user who is not in the
    database. is_listed: an access entry allows or denies it, so no rule applies. shares: what it counts as, by the plan
    of a target; see `source`.
    """

    __slots__ = ("_address", "entitlements", "is_listed", "lacks", "shares")

    def __init__(self, values: dict[str, str | None], address: str | None) -> None:
        self._fields, self._request, self._user, self.has_failed = {}, None, None, False  # type: ignore[assignment]
        self._values, self._address = values, address
        self.entitlements: tuple[Entitlement, Entitlement] = NOBODYS
        self.is_listed: bool = False
        self.lacks: tuple[str, ...] = ()
        self.shares: dict[object, Any] = {}

    def value(self, name: str) -> str | None:
        return self._values.get(name)

    @property
    def address(self) -> str | None:
        return self._address

    @property
    def api_key(self) -> str | None:
        return self._values.get("api_key")

    @property
    def awaits_authentication(self) -> bool:
        return False

    def at(self, captured: Mapping[str, Any]) -> LoggedCaller:
        """Return this caller with the parts of a path as values."""
        parts = {f"path:{name}": str(value) for name, value in captured.items() if value is not None}
        found = LoggedCaller({**self._values, **parts}, self._address)
        found.entitlements, found.lacks = self.entitlements, self.lacks
        return found


class LoggedCallers:
    """Finds the callers of lines, and caches MAX_CALLERS of them.

    identities: the identity of each additional field of the lines, in their order. rule_sets: whose tiers are used.
    """

    def __init__(self, identities: Sequence[str], rule_sets: Sequence[RuleSet]) -> None:
        self._identities, self._rule_sets = tuple(identities), rule_sets
        names = {name for rules in rule_sets for rule in rules.rules for name in rule.partition_by}
        self._networks = [name for name in names if name.startswith("ip/")]

        found = lru_cache(maxsize=MAX_CALLERS)(self._make)
        self._find = found
        self._users: dict[str, str | None] = {}
        self._entitled: dict[tuple[Any, ...], Entitlements] = {}
        #: The connection of a line, with what the code for addresses reads from a request. A request would be slower.
        self._peer: Any = SimpleNamespace()
        self._entries = access_list()

    def read_users(self, lines: Iterable[AccessLogLine]) -> None:
        """Read the users of these lines, with one query for unknown names."""
        place = self._identities.index("user") if "user" in self._identities else -1
        names = {line.user if place < 0 else line.more[place] for line in lines}
        names -= self._users.keys() | {""}
        if names:
            self._users |= dict.fromkeys(names) | _users_of(names)

    def forget(self) -> None:
        """Drop the callers in memory: they are found again."""
        self._find.cache_clear()
        self._users.clear()

    def find(self, line: AccessLogLine) -> LoggedCaller:
        """Return the caller of a line."""
        return self._find(line[3], line[4], line[7])  # address, user, more: access by place takes half the time

    def _make(self, address: str, user: str, more: tuple[str, ...]) -> LoggedCaller:
        values: dict[str, str | None] = {}
        for name, value in zip(self._identities, more, strict=True) if more else ():
            if value:
                values[name] = spelled(name, value)
        tier, user_name, key = values.pop(TIER, None), values.pop("user", user) or "", values.pop("api_key", None)
        http, lacks = self._peer, [TIER] if tier and not any(tier in each.tiers for each in self._rule_sets) else []
        http.META = _connection(values.pop("ip", None) or address)
        if "forwarded" in values:
            http.META["HTTP_X_FORWARDED_FOR"] = values.pop("forwarded")
        is_proxys = "HTTP_X_FORWARDED_FOR" not in http.META and is_proxy(http.META["REMOTE_ADDR"])
        for name, given, known in (
            ("ip", "ip", None if is_proxys else client_ip(http)),
            ("user", user_name, self._users.get(user_name)),
            ("api_key", key, _api_key(key)),
        ):
            if known is not None:
                values[name] = known
            elif given:
                lacks.append(name)
        is_asked_for = self._entries is not NOBODY or self._networks or settings.TIER_RESOLVER
        whole = client_address(http) if is_asked_for and not is_proxys else None
        values |= {each: around for each in self._networks if (around := network_around(whole, each))}
        caller = LoggedCaller(values, whole)
        caller.lacks, caller.entitlements = tuple(lacks), self._entitlements(caller, tier)
        caller.is_listed = access_entry_for(self._entries, caller) is not None
        return caller

    def _entitlements(self, caller: LoggedCaller, tier: str | None) -> Entitlements:
        """Return what the caller may have in each rule set. tier: the one that the line names."""
        found = []
        for rules in self._rule_sets:
            if not callers_differ(rules):
                found.append(NO_ENTITLEMENT)
            elif tier in rules.tiers:
                found.append(Entitlement(rules.tiers[tier]))
            else:
                found.append(caller.entitlement(rules))
        key = tuple([(each.tier and each.tier.slug, *each[1:]) for each in found])
        return self._entitled.setdefault(key, (found[0], found[-1]))


def _connection(address: str) -> dict[str, str]:
    """Return what a request says of the connection of a line with this address or list, see `AccessLogLine`."""
    forwarded, bar, peer = address.rpartition("|")
    if bar:
        return {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": forwarded}
    if "," not in address:
        return {"REMOTE_ADDR": address}
    trusted = settings.TRUSTED_PROXIES
    if trusted.hops or trusted.unix:  # of which the peer, that the log does not name, is one
        return {"REMOTE_ADDR": "", "HTTP_X_FORWARDED_FOR": address}
    forwarded, _comma, peer = address.rpartition(",")
    return {"REMOTE_ADDR": peer.strip(), "HTTP_X_FORWARDED_FOR": forwarded}


def _api_key(text: str | None) -> str | None:
    """Return the identity of a key in a log: the key itself, or its SHA-256; `None` = unknown."""
    if not text:
        return None
    if settings.API_KEY_RESOLVER is not None:
        return resolve_api_key(text)
    return next((each for each in (text, hash_api_key(text)) if len(each) == 64 and is_known_api_key(each)), None)


def _users_of(names: set[str]) -> dict[str, str]:
    """Return the primary keys of users by login name or primary key."""
    users: Any = get_user_model()
    found: dict[str, str] = {}
    writable = [name for name in names if "\0" not in name]  # PostgreSQL rejects other texts
    keys = [name for name in writable if pk_from(name) is not None]
    for field, given in ((users.USERNAME_FIELD, writable), ("pk", keys)):
        for start in range(0, len(given), 500):  # as many as every database accepts in one query
            some = [each for each in given[start : start + 500] if each not in found]
            rows = users._default_manager.filter(**{f"{field}__in": some}).values_list(field, "pk")
            found |= {str(name): str(pk) for name, pk in rows}
    return found
