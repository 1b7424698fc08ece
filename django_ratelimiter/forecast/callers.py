"""The callers of a log's requests: identities, tiers and access entries, from the log and the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from ..conf import settings
from ..databases import spelled
from ..identity import client_ip, digest, hash_api_key
from ..identity.proxies import client_address
from ..rules.cache import access_list, entitlement_for
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, is_known_api_key, resolve_api_key
from ..values.access import NOBODY, AccessRecord
from ..values.partitions import encode_partition
from .logs.line import AccessLogLine

#: Maximum number of callers in memory: those of the latest lines. About 0.4 KB each.
MAX_CALLERS: Final = 100_000

#: Maximum number of cached user names.
MAX_USERS: Final = 200_000

#: If "tier" is mapped to a field, the field contains the slug of the caller's tier.
TIER: Final = "tier"


#: The identities that any log may contain, in the order of their parts.
_ALWAYS: Final = ("ip", "user", "api_key")


class _Peer:
    """The connection of a line, with what the code for addresses reads from a request. A request would be slower."""

    __slots__ = ("META",)

    def __init__(self) -> None:
        self.META: dict[str, str] = {}


class CallerKind:
    """The common part of callers. Compared by identity: equal kinds are one object.

    entitlements: for each rule set; the early ones are those before authentication. early_access, access: the access
    entry before authentication, and after it; `None` = there is none. places: of the identities in `parts`.
    """

    __slots__ = ("access", "early_access", "early_entitlements", "entitlements", "places")

    def __init__(
        self,
        places: Mapping[str, int],
        entitlements: tuple[Entitlement, ...],
        early_entitlements: tuple[Entitlement, ...],
        access: AccessRecord | None,
        early_access: AccessRecord | None,
    ) -> None:
        self.places, self.entitlements, self.early_entitlements = places, entitlements, early_entitlements
        self.access, self.early_access = access, early_access


class LoggedCaller:
    """A caller of some lines. There are many, and most are made more than once, so it is small.

    name: for reports: "user:42", "api_key:HASH" or "ip:ADDRESS", the first that is known. parts: the partition that all
    callers share, then those by one identity each, see `CallerKind.places`; `None` = the caller lacks it. is_new:
    the caller was not counted since the object was made.
    """

    __slots__ = ("is_new", "kind", "name", "parts")

    def __init__(self, name: str, parts: tuple[str | None, ...], kind: CallerKind) -> None:
        self.name, self.parts, self.kind, self.is_new = name, parts, kind, True

    def part(self, identity: str) -> str | None:
        """Return the partition by this identity alone; `None` = the caller lacks it."""
        place = self.kind.places.get(identity)
        return None if place is None else self.parts[place]


class LoggedCallers:
    """Finds the callers of lines, and caches MAX_CALLERS of them.

    rule_sets: whose tiers are used. identities: the identity of each additional field of the lines, in their order.
    unknown_users: user names that this database does not have.
    """

    def __init__(self, rule_sets: Sequence[RuleSet], identities: Sequence[str]) -> None:
        self._rule_sets, self._identities = rule_sets, tuple(identities)
        others = [each for each in self._identities if each not in (*_ALWAYS, TIER, "forwarded")]
        self._others = tuple(dict.fromkeys(others))
        self._places = {name: place for place, name in enumerate((*_ALWAYS, *self._others), start=1)}
        self._none = (None,) * (len(self._places) - 1)
        self._of_all = digest("")
        self._callers: dict[Any, LoggedCaller] = {}
        self._earlier = self._callers  # earlier callers, which are moved when they come back
        self._users: dict[str, str | None] = {}
        self._tiers: dict[tuple[int, str, Any], Entitlement] = {}
        self._kinds: dict[tuple[int, ...], CallerKind] = {}
        self._entries = access_list()
        self._are_alike = self._entries is NOBODY and not any(rules.tiers for rules in rule_sets)
        self._only_kind: CallerKind | None = None
        self._peer: Any = _Peer()
        self.unknown_users = 0

    def read_users(self, lines: Iterable[AccessLogLine]) -> None:
        """Read the users of these lines, with one query for unknown names."""
        place = self._identities.index("user") if "user" in self._identities else -1
        names = {line.user if place < 0 else line.more[place] for line in lines}
        if len(self._users) > MAX_USERS:
            self._users.clear()
        names -= self._users.keys() | {""}
        if not names:
            return
        found = _users_of(names)
        self.unknown_users += len(names) - len(found)
        for name in names:
            self._users[name] = found.get(name)

    def find(self, line: AccessLogLine) -> LoggedCaller:
        """Return the caller of a line."""
        key: Any = line[3], line[4], line[7]  # address, user, more: access by place takes half the time
        if not (key[1] or key[2]):
            key = key[0]
        return self._callers.get(key) or self._remember(key, line)

    def _remember(self, key: Any, line: AccessLogLine) -> LoggedCaller:
        """Return a caller that is not cached."""
        caller = self._earlier.get(key) or self._make(line[3], line[4], line[7])
        if len(self._callers) >= MAX_CALLERS // 2:
            self._earlier, self._callers = self._callers, {}
        self._callers[key] = caller
        return caller

    def _make(self, address: str, user: str, more: tuple[str, ...]) -> LoggedCaller:
        if user or more:
            return self._make_of_fields(address, user, more)
        http = self._peer
        http.META["REMOTE_ADDR"] = address
        network = client_ip(http)
        kind = self._kind({} if network is None else {"ip": network}, None, http)
        if network is None:
            return LoggedCaller("(unknown)", (self._of_all, None, *self._none), kind)
        part = f"ip:{network}"  # nothing to escape in an address
        return LoggedCaller(part, (self._of_all, part, *self._none), kind)

    def _make_of_fields(self, address: str, user: str, more: tuple[str, ...]) -> LoggedCaller:
        values = {name: spelled(name, value) for name, value in zip(self._identities, more, strict=True) if value}
        tier, http = values.pop(TIER, None), _Peer()
        http.META["REMOTE_ADDR"] = values.pop("ip", address)
        if "forwarded" in values:
            http.META["HTTP_X_FORWARDED_FOR"] = values.pop("forwarded")
        if (network := client_ip(http)) is not None:  # type: ignore[arg-type]
            values["ip"] = network
        user_id = self._users.get(values.pop("user", user))
        if user_id is not None:
            values["user"] = user_id
        if (api_key := _api_key(values.pop("api_key", ""))) is not None:
            values["api_key"] = api_key
        name = next((each for each in ("user", "api_key", "ip", "session") if each in values), "")
        name = f"{name}:{values[name]}" if name else "(unknown)"
        parts = [encode_partition(((each, values[each]),)) if each in values else None for each in self._places]
        return LoggedCaller(name, (self._of_all, *parts), self._kind(values, tier, http))

    def _kind(self, values: Mapping[str, str], tier: str | None, http: Any) -> CallerKind:
        """Return the kind of this caller. http: has the whole address."""
        user_id, api_key = values.get("user"), values.get("api_key")
        if self._only_kind is not None:
            return self._only_kind
        entitlements = tuple([self._entitlement(rules, values, tier) for rules in self._rule_sets])
        early = entitlements if user_id is None else self._early(values)
        access = early_access = None
        if self._entries is not NOBODY:
            address = client_address(http)
            access = self._entries.lookup(address, user_id, api_key)
            early_access = self._entries.lookup(address, None, api_key)
        key = *map(id, entitlements), *map(id, early), id(access), id(early_access)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = CallerKind(self._places, entitlements, early, access, early_access)
        if self._are_alike:
            self._only_kind = kind
        return kind

    def _early(self, values: Mapping[str, str]) -> tuple[Entitlement, ...]:
        """Return the entitlements while the user is not known yet: that of the API key, else empty."""
        if "api_key" not in values:
            return tuple([self._one(rules, Entitlement(None)) for rules in self._rule_sets])
        known = {name: value for name, value in values.items() if name != "user"}
        return tuple([self._entitlement(rules, known, None) for rules in self._rule_sets])

    def _entitlement(self, rules: RuleSet, values: Mapping[str, str], tier: str | None) -> Entitlement:
        """Return the caller's tier and multiplier; equal ones are one object."""
        if not rules.tiers:
            return self._one(rules, Entitlement(None))
        if tier in rules.tiers:
            return self._one(rules, Entitlement(rules.tiers[tier]))
        partition_of = partial(partition_of_values, values)
        return self._one(rules, entitlement_for(rules, values.get("user"), values.get("api_key"), partition_of))

    def _one(self, rules: RuleSet, found: Entitlement) -> Entitlement:
        key = id(rules), found.tier.slug if found.tier else "", found.multiplier
        return self._tiers.setdefault(key, found)


def partition_of_values(values: Mapping[str, str], names: Iterable[str]) -> str | None:
    """Return the partition of these values; `None` = one of them is missing."""
    parts = []
    for name in names:
        value = values.get(name)
        if value is None:
            return None
        parts.append((name, value))
    return encode_partition(parts)


def _api_key(text: str) -> str | None:
    """Return the identity of a key in a log: the key itself, or its SHA-256; `None` = unknown."""
    if not text:
        return None
    if settings.API_KEY_RESOLVER is not None:
        return resolve_api_key(settings.API_KEY_RESOLVER, text)
    return next((each for each in (text, hash_api_key(text)) if len(each) == 64 and is_known_api_key(each)), None)


def _users_of(names: set[str]) -> dict[str, str]:
    """Return the primary keys of users by log-in name or primary key."""
    users: Any = get_user_model()
    found: dict[str, str] = {}
    writable = [name for name in names if "\0" not in name]  # PostgreSQL rejects other texts
    for field, given in ((users.USERNAME_FIELD, writable), ("pk", [*filter(_is_key, writable)])):
        for start in range(0, len(given), 500):  # as many as every database accepts in one query
            some = [each for each in given[start : start + 500] if each not in found]
            rows = users._default_manager.filter(**{f"{field}__in": some}).values_list(field, "pk")
            found |= {str(name): str(pk) for name, pk in rows}
    return found


def _is_key(text: str) -> bool:
    """Return whether this may be a user's primary key; False for numbers that the database cannot compare with."""
    field = get_user_model()._meta.pk
    try:
        key = field.to_python(text)
        field.run_validators(key)
    except (ValidationError, ValueError, OverflowError):
        return False
    return not isinstance(key, int) or abs(key) < 2**63
