"""The callers of a log's requests: identities, tiers and access entries, from the log and the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from ...conf import settings
from ...databases import spelled
from ...identity import Identity, client_ip, hash_api_key
from ...identity.proxies import client_address, is_proxy, network_around
from ...limiter.charges import NO_ENTITLEMENT
from ...rules.cache import access_list
from ...rules.ruleset import RuleSet
from ...rules.tiers import Entitlement, callers_differ, is_known_api_key, resolve_api_key
from ...values.access import NOBODY
from .changes import UNKNOWN
from .line import AccessLogLine

#: Maximum number of callers in memory: those of the latest lines. About 0.4 KB each.
MAX_CALLERS: Final = 80_000

#: Maximum number of cached user names.
MAX_USERS: Final = 200_000

#: What a line lacks, see `LoggedCaller`, if its address is that of a trusted proxy, and it does not say for whom.
PROXY: Final = "proxy"

#: If "tier" is mapped to a field, the field contains the slug of the caller's tier.
TIER: Final = "tier"


#: What a caller may have in each rule set. Equal ones share one object.
Entitlements = tuple[tuple[RuleSet, Entitlement], ...]


class LoggedCaller(Identity):
    """A caller of some lines, with the values that the log contains. There are many, so it is small.

    name: for reports: "user:42", "api_key:HASH" or "ip:ADDRESS", the first that is known. early: the same caller before
    authentication, if that is another one; never itself, because nothing collects circles during a replay. is_new: the
    caller was not counted since the object was made. lacks: identities that every request has, or that the lines name,
    and that are not known: no address, or a user who is not in the database.
    """

    __slots__ = ("_address", "_entitlements", "early", "is_new", "lacks", "name")

    def __init__(self, name: str, values: dict[str, str | None], address: str | None, entitled: Entitlements) -> None:
        self._fields, self._request, self._user, self.has_failed = {}, None, None, False  # type: ignore[assignment]
        self._values, self._address, self._entitlements = values, address, entitled
        self.name, self.is_new = name, True
        self.early: LoggedCaller | None = None
        self.lacks: tuple[str, ...] = ()

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
        return False  # `early` has the tier of a caller who is not known yet

    def entitlement(self, rules: RuleSet, note: Any = None) -> Entitlement:
        return next(entitlement for known, entitlement in self._entitlements if known is rules)

    def at(self, captured: Mapping[str, Any]) -> LoggedCaller:
        """Return this caller with the parts of a path as values."""
        parts = {f"path:{name}": str(value) for name, value in captured.items() if value is not None}
        found = LoggedCaller(self.name, {**self._values, **parts}, self._address, self._entitlements)
        if self.early is not None:
            found.early = self.early.at(captured)
        return found


class LoggedCallers:
    """Finds the callers of lines, and caches MAX_CALLERS of them.

    identities: the identity of each additional field of the lines, in their order. rule_sets: whose tiers are used.
    unknown_users: user names that this database does not have.
    """

    def __init__(self, identities: Sequence[str], rule_sets: Sequence[RuleSet] = ()) -> None:
        self._identities = tuple(identities)
        self.use(rule_sets)
        self._callers: dict[Any, LoggedCaller] = {}
        self._earlier = self._callers  # earlier callers, which are moved when they come back
        self._users: dict[str, str | None] = {}
        self._entitled: dict[tuple[Any, ...], Entitlements] = {}
        #: The connection of a line, with what the code for addresses reads from a request. A request would be slower.
        self._peer: Any = SimpleNamespace()
        self.entries = access_list()
        self.unknown_users = 0

    def use(self, rule_sets: Sequence[RuleSet]) -> None:
        """Use the tiers of these rule sets, and the networks that they count by, such as "ip/48"."""
        self.rule_sets = rule_sets
        names = {name for rules in rule_sets for rule in rules.rules for name in rule.partition_by}
        self._networks = [name for name in names if name.startswith("ip/")]

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

    @property
    def knows_users(self) -> bool:
        """True if a line that was read names a user of this database."""
        return any(user is not None for user in self._users.values())

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
        values: dict[str, str | None] = {}
        for name, value in zip(self._identities, more, strict=True) if more else ():
            if value:
                values[name] = spelled(name, value)
        tier, user_name, key = values.pop(TIER, None), values.pop("user", user) or "", values.pop("api_key", None)
        http, lacks = self._peer, [TIER] if tier and not any(tier in each.tiers for each in self.rule_sets) else []
        http.META = _connection(values.pop("ip", None) or address)
        if "forwarded" in values:
            http.META["HTTP_X_FORWARDED_FOR"] = values.pop("forwarded")
        for name, given, known in (
            ("ip", "ip", client_ip(http)),
            ("user", user_name, self._users.get(user_name)),
            ("api_key", key, _api_key(key)),
        ):
            if known is not None:
                values[name] = known
            elif given:
                lacks.append(name)
        if "HTTP_X_FORWARDED_FOR" not in http.META and "ip" in values and is_proxy(http.META["REMOTE_ADDR"]):
            lacks.append(PROXY)
        is_asked_for = self.entries is not NOBODY or self._networks or settings.TIER_RESOLVER
        whole = client_address(http) if is_asked_for else None
        values |= {each: around for each in self._networks if (around := network_around(whole, each))}
        name = next((each for each in ("user", "api_key", "ip", "session") if each in values), "")
        name = f"{name}:{values[name]}" if name else UNKNOWN
        caller = LoggedCaller(name, values, whole, self._entitlements(values, whole, tier))
        caller.lacks = tuple(lacks)
        if "user" in values:
            early = {each: value for each, value in values.items() if each != "user"}
            caller.early = LoggedCaller(name, early, whole, self._entitlements(early, whole, None, is_early=True))
        return caller

    def _entitlements(
        self, values: dict[str, str | None], whole: str | None, tier: str | None, *, is_early: bool = False
    ) -> Entitlements:
        """Return what the caller may have in each rule set. is_early: the user is not known yet."""
        found = [(rules, self._entitlement(rules, values, whole, tier, is_early=is_early)) for rules in self.rule_sets]
        key = tuple([(each.tier and each.tier.slug, *each[1:]) for _, each in found])
        return self._entitled.setdefault(key, tuple(found))

    def _entitlement(
        self, rules: RuleSet, values: dict[str, str | None], whole: str | None, tier: str | None, *, is_early: bool
    ) -> Entitlement:
        if not callers_differ(rules) or (is_early and "api_key" not in values):
            return NO_ENTITLEMENT
        if tier in rules.tiers:
            return Entitlement(rules.tiers[tier])
        return super(LoggedCaller, LoggedCaller("", values, whole, ())).entitlement(rules)


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
