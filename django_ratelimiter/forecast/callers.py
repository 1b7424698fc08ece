"""Who sent the requests of a log: identities, tiers and access entries, as far as the log and the database tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from ..conf import settings
from ..identity import client_ip, hash_api_key
from ..identity.proxies import client_address
from ..rules.cache import access_list, entitlement_for
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement, is_known_api_key, resolve_api_key
from ..values.access import NOBODY, AccessRecord
from ..values.partitions import encode_partition
from .logs.line import AccessLogLine

#: So many callers are remembered with what is known of them: those of the latest lines. About 1.5 KB each.
MAX_CALLERS: Final = 40_000

#: So many names of users are remembered.
MAX_USERS: Final = 200_000

#: Where "tier" is mapped to a field, the field holds the slug of the caller's tier.
TIER: Final = "tier"


class _Peer:
    """What a log tells of a connection, as the finders of addresses read it of a request. A request takes longer."""

    __slots__ = ("META",)

    def __init__(self, address: str) -> None:
        self.META = {"REMOTE_ADDR": address}


class LoggedCaller:
    """A caller of some lines.

    name: for reports: "user:42", "api_key:HASH" or "ip:ADDRESS", the first that is known. values: by identity; one that
    is missing is not there. entitlements: for each rule set; the early ones are those before authentication. charges:
    what is charged, by kind of request. is_new: nobody has counted this caller since it was made. early_access, access:
    the access entry that counts for the caller before authentication, and after it; `None` = there is none.
    """

    __slots__ = ("access", "charges", "early_access", "early_entitlements", "entitlements", "is_new", "name", "values")

    def __init__(self, values: Mapping[str, str], entitlements: Sequence[Entitlement]) -> None:
        self.values, self.entitlements = values, tuple(entitlements)
        self.early_entitlements = self.entitlements
        name = next((each for each in ("user", "api_key", "ip", "session") if each in values), "")
        self.name = f"{name}:{values[name]}" if name else "(unknown)"
        self.charges: dict[Any, Any] = {}
        self.is_new = True
        self.access: AccessRecord | None = None
        self.early_access: AccessRecord | None = None


class LoggedCallers:
    """Finds the callers of lines, and remembers MAX_CALLERS of them.

    rule_sets: those that name the tiers. identities: the identity of each further field of the lines, in their order.
    unknown_users: names of users that this database does not have.
    """

    def __init__(self, rule_sets: Sequence[RuleSet], identities: Sequence[str]) -> None:
        self._rule_sets, self._identities = rule_sets, tuple(identities)
        self._callers: dict[tuple[str, str, tuple[str, ...]], LoggedCaller] = {}
        self._earlier = self._callers  # those of the lines before, who are moved once they come back
        self._users: dict[str, str | None] = {}
        self._tiers: dict[tuple[int, str, Any], Entitlement] = {}
        self._entries = access_list()
        self.unknown_users = 0

    def read_users(self, lines: Iterable[AccessLogLine]) -> None:
        """Read the users of these lines, in one query for those that are not known yet."""
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
        key = line[3], line[4], line[7]  # address, user, more: by place in half the time
        return self._callers.get(key) or self._remember(key)

    def _remember(self, key: tuple[str, str, tuple[str, ...]]) -> LoggedCaller:
        """Return a caller who is not among the latest."""
        caller = self._earlier.get(key) or self._make(*key)
        if len(self._callers) >= MAX_CALLERS // 2:
            self._earlier, self._callers = self._callers, {}
        self._callers[key] = caller
        return caller

    def _make(self, address: str, user: str, more: tuple[str, ...]) -> LoggedCaller:
        values = {name: value for name, value in zip(self._identities, more, strict=True) if value}
        tier = values.pop(TIER, None)
        http: Any = _Peer(values.pop("ip", address))
        if "forwarded" in values:
            http.META["HTTP_X_FORWARDED_FOR"] = values.pop("forwarded")
        if (network := client_ip(http)) is not None:
            values["ip"] = network
        user_id = self._users.get(values.pop("user", user))
        if user_id is not None:
            values["user"] = user_id
        if (api_key := _api_key(values.pop("api_key", ""))) is not None:
            values["api_key"] = api_key
        caller = LoggedCaller(values, [])
        caller.entitlements = tuple([self._entitlement(rules, values, tier) for rules in self._rule_sets])
        caller.early_entitlements = caller.entitlements if user_id is None else self._early(values)
        if self._entries is not NOBODY:
            address_of = client_address(http)
            caller.access = self._entries.lookup(address_of, user_id, api_key)
            caller.early_access = self._entries.lookup(address_of, None, api_key)
        return caller

    def _early(self, values: Mapping[str, str]) -> tuple[Entitlement, ...]:
        """Return what a caller has whose user is not known yet: that of the API key, else nothing is decided."""
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
    """Return what a key of a log counts as: the key itself, or its SHA-256; `None` = unknown."""
    if not text:
        return None
    if settings.API_KEY_RESOLVER is not None:
        return resolve_api_key(settings.API_KEY_RESOLVER, text)
    return next((each for each in (text, hash_api_key(text)) if len(each) == 64 and is_known_api_key(each)), None)


def _users_of(names: set[str]) -> dict[str, str]:
    """Return the primary keys of the users of these log-in names, or of these primary keys."""
    users: Any = get_user_model()
    found: dict[str, str] = {}
    writable = [name for name in names if "\0" not in name]  # PostgreSQL takes no other text
    for field, given in ((users.USERNAME_FIELD, writable), ("pk", [*filter(_is_key, writable)])):
        for start in range(0, len(given), 500):  # as many as every database takes in one query
            some = [each for each in given[start : start + 500] if each not in found]
            rows = users._default_manager.filter(**{f"{field}__in": some}).values_list(field, "pk")
            found |= {str(name): str(pk) for name, pk in rows}
    return found


def _is_key(text: str) -> bool:
    """Return whether a user could have this primary key; not a number that the database cannot compare with."""
    field = get_user_model()._meta.pk
    try:
        key = field.to_python(text)
        field.run_validators(key)
    except (ValidationError, ValueError, OverflowError):
        return False
    return not isinstance(key, int) or abs(key) < 2**63
