"""Access list: callers that are allowed or denied before any rule. A lookup takes a fraction of a decision. No ORM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from time import time
from typing import Final, NamedTuple

from .partitions import is_address, is_identity

ACTIONS: Final = ("allow", "deny")
KINDS: Final = ("ip", "user", "api_key", "digest", "customer")

#: Between the ways in which the caller of a digest may be counted.
_OR: Final = " or "
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{22}")

#: The beginning of an assignment's partition that names a digest, as `parse_digest` reads it. No identity has it.
DIGEST_MARK: Final = "#"

#: What callers are counted by: the names of identities.
Names = tuple[str, ...]


class AccessRecord(NamedTuple):
    """Allows or denies one caller. No rule applies to an allowed one.

    kind: ip, user, api_key, digest or customer. value: an address or network; a user's primary key as text; the hash of
    an API key; what a caller is counted by, and its digest, see `parse_digest`; a customer's primary key. expires_at:
    seconds since the Unix epoch, after which it is ignored; `None` = never. pk: of the entry in the database; `None` =
    it has no row.
    """

    action: str
    kind: str
    value: str
    expires_at: float | None = None
    reason: str = ""
    pk: int | None = None

    @property
    def counted_by(self) -> Sequence[Names]:
        """By what rules may count its caller."""
        return parse_digest(self.value)[0] if self.kind == "digest" else [(self.kind,)]


#: The records for one value. The first that has not expired applies.
_Records = tuple[AccessRecord, ...]
#: Those of networks of one length, by the beginning of their addresses; and how many bits follow it.
_Networks = tuple[int, Mapping[int, _Records]]


class AccessList:
    """All records, prepared for lookups, whose time grows only with the number of different lengths of networks.

    If several match a caller, the API key wins over the user, the user over the customer, that over other identities
    and these over the address. A value wins over its digest, but the digest of an address over networks. Of networks
    the narrowest wins; of records for the same value, the one that denies. Expired records are ignored. Invalid records
    are left out: `left_out` has each with the reason. kinds: those that some record has; other values of the caller are
    not needed. digests: of callers, by what they are counted by.
    """

    def __init__(self, records: Iterable[AccessRecord]) -> None:
        named: dict[tuple[str, str], list[AccessRecord]] = {}
        networks: dict[IPv4Network | IPv6Network, list[AccessRecord]] = {}
        self.left_out: list[tuple[AccessRecord, str]] = []
        digests: dict[Names, dict[str, list[AccessRecord]]] = {}
        for record in records:
            try:
                _check(record)
                if record.kind == "ip":
                    networks.setdefault(network_of(record.value), []).append(record)
                elif record.kind == "digest":
                    every, digest = parse_digest(record.value)
                    for names in every:
                        digests.setdefault(names, {}).setdefault(digest, []).append(record)
                else:
                    named.setdefault((record.kind, record.value), []).append(record)
            except ValueError as error:
                self.left_out.append((record, str(error)))
        self._named: Mapping[tuple[str, str], _Records] = {key: _in_order(each) for key, each in named.items()}
        self.digests: Mapping[Names, Mapping[str, _Records]] = {
            names: {digest: _in_order(records) for digest, records in each.items()} for names, each in digests.items()
        }
        self._v4, self._v6 = _by_length(networks, 4), _by_length(networks, 6)
        self.kinds: frozenset[str] = frozenset(kind for kind, _value in named) | ({"ip"} if networks else frozenset())

    def __bool__(self) -> bool:
        return bool(self._named or self.digests or self._v4 or self._v6)

    def lookup(
        self,
        ip: str | None,
        user_id: str | None,
        api_key: str | None,
        now: float | None = None,
        digests_of: Callable[[Names], Iterable[str]] | None = None,
        customer: str | None = None,
    ) -> AccessRecord | None:
        """Return the record that applies to a caller; `None` = there is none.

        ip: the whole address, not a network. api_key: the hash of a known key. now: seconds since the Unix epoch,
        `None` = the time of this machine. digests_of: returns the digests of the caller as counted by these names.
        """
        if self.digests and digests_of is not None:
            return self._lookup_digests(ip, user_id, api_key, digests_of, now, customer)
        named = self._named
        if named:
            if api_key and (entry := named.get(("api_key", api_key))) and (record := _unexpired(entry, now)):
                return record
            if user_id and (entry := named.get(("user", user_id))) and (record := _unexpired(entry, now)):
                return record
            if customer and (entry := named.get(("customer", customer))) and (record := _unexpired(entry, now)):
                return record
        return None if ip is None else self._lookup_address(ip, now)

    def _lookup_address(self, ip: str, now: float | None) -> AccessRecord | None:
        try:
            if ":" in ip:
                networks, number = self._v6, int.from_bytes(inet_pton(AF_INET6, ip))
            else:
                networks, number = self._v4, int.from_bytes(inet_pton(AF_INET, ip))
        except (OSError, ValueError):  # not an address
            return None
        for bits, around in networks:
            if (entry := around.get(number >> bits)) and (record := _unexpired(entry, now)):
                return record
        return None

    def _lookup_digests(
        self,
        ip: str | None,
        user_id: str | None,
        api_key: str | None,
        digests_of: Callable[[Names], Iterable[str]],
        now: float | None,
        customer: str | None,
    ) -> AccessRecord | None:
        """Look up in the order of ranks, each time the value and then its digest; of an address the digest first."""
        by_rank: list[AccessRecord | None] = [None] * 4
        for names, entries in self.digests.items():
            for digest in digests_of(names):
                if (entry := entries.get(digest)) and (record := _unexpired(entry, now)):
                    by_rank[_rank(names)] = record
        key, user = self.lookup(None, None, api_key, now), self.lookup(None, user_id, None, now)
        own = self.lookup(None, None, None, now, customer=customer)
        found = (key, by_rank[0], user, by_rank[1], own, *by_rank[2:], self.lookup(ip, None, None, now))
        return next(filter(None, found), None)


def parse_digest(value: str) -> tuple[list[Names], str]:
    """Return what a caller may be counted by, and its digest: of "ip:DIGEST", "user or ip:DIGEST", "user|ip:DIGEST".

    Raises ValueError.
    """
    by, _, digest = value.rpartition(":")
    found = [tuple(each.split("|")) for each in by.split(_OR)]
    if not (_DIGEST.fullmatch(digest) and all(is_identity(name) for names in found for name in names)):
        raise ValueError(f"{value!r} is not what a rule counts by and a digest, such as 'ip:{'X' * 22}'")
    return found, digest


def digest_value(counted_by: Iterable[Names], digest: str) -> str:
    """Return the value of a record that `parse_digest` reads."""
    return f"{_OR.join(map('|'.join, counted_by))}:{digest}"


def _rank(names: Names) -> int:
    """Return the rank of what callers are counted by: the API key, the user, anything else, the address."""
    if len(names) == 1 and names[0] in ("api_key", "user"):
        return ("api_key", "user").index(names[0])
    return 3 if all(map(is_address, names)) else 2


def network_of(text: str) -> IPv4Network | IPv6Network:
    """Return the network in `text`; an address becomes a network of one, an IPv4-mapped one the IPv4 network.

    Raises ValueError, also if bits after the prefix are set.
    """
    if "%" in text:
        raise ValueError(f"{text!r} has a zone, which is valid only on one machine")
    network = ip_network(text)
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is not None and network.prefixlen >= 96:
        return IPv4Network((mapped, network.prefixlen - 96))
    return network


def _check(record: AccessRecord) -> None:
    for name, value, known in (("action", record.action, ACTIONS), ("kind", record.kind, KINDS)):
        if value not in known:
            raise ValueError(f"{name}: {value!r} is unknown; choose one of {', '.join(known)}")
    if not record.value:
        raise ValueError("value: is empty")


def _by_length(networks: Mapping[IPv4Network | IPv6Network, list[AccessRecord]], version: int) -> list[_Networks]:
    """Return the networks of this version by their length, the narrowest first."""
    found: dict[int, dict[int, _Records]] = {}
    for network, records in networks.items():
        if network.version == version:
            bits = network.max_prefixlen - network.prefixlen
            found.setdefault(bits, {})[int(network.network_address) >> bits] = _in_order(records)
    return [(bits, found[bits]) for bits in sorted(found)]


def _in_order(records: Iterable[AccessRecord]) -> _Records:
    """Return records for one value, those that deny first, then by longest lifetime."""

    def weight(record: AccessRecord) -> tuple[bool, float]:
        return record.action == "deny", float("inf") if record.expires_at is None else record.expires_at

    return tuple(sorted(records, key=weight, reverse=True))


def _unexpired(records: _Records, now: float | None) -> AccessRecord | None:
    for record in records:
        if record.expires_at is None:
            return record
        if now is None:
            now = time()
        if now < record.expires_at:
            return record
    return None


#: An empty list: the rules apply to all callers.
NOBODY: Final = AccessList(())
