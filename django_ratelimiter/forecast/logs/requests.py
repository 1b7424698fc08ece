"""The requests of lines of a log: their callers, from the log and the database, and the rules that they match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.urls import get_script_prefix
from django.utils import translation
from django.utils.encoding import repercent_broken_unicode

from ...conf import django_setting, settings
from ...databases import pk_of, spelled
from ...identity import Identity, access_entry_for, client_ip, hash_api_key
from ...identity.proxies import client_address, is_proxy, network_around
from ...inspection.entry_points import has_limiter, language_of, resolve_view
from ...limiter.charges import NO_ENTITLEMENT, Only
from ...middleware import ASKED_BY_GATEWAYS, exemption
from ...rules.cache import access_list
from ...rules.records import Facts, RuleRecord
from ...rules.routes import is_translated
from ...rules.ruleset import RuleIndex, RuleSet
from ...rules.tiers import Entitlement, callers_differ, is_known_api_key, resolve_api_key
from ...values.access import NOBODY
from ..code import Asked, asked_by
from .formats import AccessLogLine

#: Maximum number of callers in memory: those of the latest lines. About 0.7 KB each.
MAX_CALLERS: Final = 80_000

#: If "tier" is mapped to a field, the field contains the slug of the caller's tier.
TIER: Final = "tier"

#: What a caller may have under the earlier and the changed rules. Equal ones share one object.
Entitlements = tuple[Entitlement, Entitlement]
NOBODYS: Final = (NO_ENTITLEMENT, NO_ENTITLEMENT)

#: Maximum number of cached methods and paths with their targets. About 1 KB each.
MAX_TARGETS: Final = 20_000


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
        self._asks_for_customers = bool(settings.CUSTOMER) and "customer" in names
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
        if "customer" in values:
            caller.assume("customer", values["customer"] or "")
        elif self._asks_for_customers and caller.customer:
            values["customer"] = caller.customer.value
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
    keys = [name for name in writable if pk_of(users, name) is not None]
    for field, given in ((users.USERNAME_FIELD, writable), ("pk", keys)):
        for start in range(0, len(given), 500):  # as many as every database accepts in one query
            some = [each for each in given[start : start + 500] if each not in found]
            rows = users._default_manager.filter(**{f"{field}__in": some}).values_list(field, "pk")
            found |= {str(name): str(pk) for name, pk in rows}
    return found


class Plan:
    """How the requests to some targets count for the rules at a place. cost: units; `None` = those of each rule."""

    __slots__ = ("cost", "place")

    def __init__(self, place: int, cost: int | None) -> None:
        self.place, self.cost = place, cost


class LoggedTarget(NamedTuple):
    """The target of a method and a path. plans: of the rules that match; each plan is one object for all targets.

    captured: the parts of the path.
    """

    plans: tuple[Plan, ...]
    captured: Mapping[str, Any]


#: The target of what a server answers itself: HTTP/2's preface, tunnels, `OPTIONS *`, and what is no request.
UNREACHED: Final = LoggedTarget((), {})


def target_finder(rules: Sequence[RuleRecord]) -> Callable[[str, str], LoggedTarget]:
    """Return what finds the target of a method and a path, of MAX_TARGETS in a cache. rules: their conditions count."""
    root = get_script_prefix().rstrip("/")
    in_middleware = has_limiter()
    translated = is_translated(django_setting("ROOT_URLCONF"))
    # The index knows rules by their slugs, and those that are off match nothing.
    index = RuleIndex([replace(rule, slug=str(place), mode="enforce") for place, rule in enumerate(rules)])
    plans: dict[tuple[int, int | None], Plan] = {}

    @lru_cache(maxsize=MAX_TARGETS)
    def find(method: str, path: str) -> LoggedTarget:
        if method in ("", "PRI", "CONNECT") or not (path.startswith("/") or "://" in path):
            return UNREACHED
        http = _request(method, path, root)
        with translation.override(language_of(http)) if translated else nullcontext():
            calls = _calls(http, in_middleware)
        found: dict[int, Plan] = {}
        for facts, asked in calls:
            for rule in index.match(facts):
                if not isinstance(facts.scope, Only) or rule.scope == facts.scope:
                    key = int(rule.slug), asked.cost
                    found.setdefault(key[0], plans.setdefault(key, Plan(*key)))
        match = http.resolver_match
        return LoggedTarget(tuple(found.values()), match.kwargs if match else {})

    return find


def _request(method: str, path: str, root: str) -> HttpRequest:
    if not path.startswith("/"):  # the form for proxies: http://host/path
        path = "/" + path.partition("://")[2].partition("/")[2]
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    http = HttpRequest()
    http.method = method.upper()
    http.path = http.path_info = repercent_broken_unicode(unquote_to_bytes(path)).decode() if "%" in path else path
    if method == "OPTIONS":  # nearly all are preflights of browsers, and a log does not distinguish others
        http.META |= {"HTTP_ORIGIN": "null", "HTTP_ACCESS_CONTROL_REQUEST_METHOD": "GET"}
    return http


def _calls(http: HttpRequest, in_middleware: bool) -> list[tuple[Facts, Asked]]:
    """Return the calls of the limiter for a request, in the order of its entry points."""
    resolve_view(http)
    match = http.resolver_match
    view = match.func if match else None
    if hasattr(view, ASKED_BY_GATEWAYS):
        return []
    route, name = (match.route or "", match.view_name or "") if match else ("", "")
    asked = [Asked()] if in_middleware and not exemption(http) else []
    asked += asked_by(view, http.method or "") if match else ()
    path = http.path_info or "/"
    return [(Facts(http.method or "", path, route, name, each.scope or ""), each) for each in asked]
