"""Access list: callers that are allowed or denied before any rule. A lookup takes a fraction of a decision. No ORM."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from time import time
from typing import Final, NamedTuple

from .partitions import is_address, is_identity

ACTIONS: Final = ("allow", "deny")
KINDS: Final = ("ip", "user", "api_key", "digest")

#: Between the ways in which the caller of a digest may be counted.
_OR: Final = " or "
_DIGEST: Final = re.compile(r"[A-Za-z0-9_-]{22}")

#: The beginning of an assignment's partition that names a digest, as `parse_digest` reads it. No identity has it.
DIGEST_MARK: Final = "#"

#: What callers are counted by: the names of identities.
Names = tuple[str, ...]


class AccessRecord(NamedTuple):
    """Allows or denies one caller. No rule applies to an allowed one.

    kind: ip, user, api_key or digest. value: an address or network; a user's primary key as text; the hash of an API
    key; what a caller is counted by, and its digest, see `parse_digest`. expires_at: seconds since the Unix epoch,
    after which it is ignored; `None` = never. pk: of the entry in the database; `None` = it has no row.
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


class _Entry(NamedTuple):
    """A record, and the one that applies after its expiry."""

    record: AccessRecord
    otherwise: _Entry | None


#: The bounds of networks, as numbers in ascending order, and the entry that applies from each to the next.
_Steps = tuple[list[int], list[_Entry | None]]


class AccessList:
    """All records, prepared for lookups, whose time grows only with the logarithm of their number.

    If several match a caller, the API key wins over the user, the user over other identities, and these over the
    address. A value wins over its digest, but the digest of an address over networks. Of networks the narrowest wins;
    of records for the same value, the one that denies. Expired records are ignored. Invalid records are left out:
    `left_out` has each with the reason. kinds: those that some record has; other values of the caller are not needed.
    digests: of callers, by what they are counted by.
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
        self._named: Mapping[tuple[str, str], _Entry] = {key: _stacked(each, None) for key, each in named.items()}
        self.digests: Mapping[Names, Mapping[str, _Entry]] = {
            names: {digest: _stacked(records, None) for digest, records in each.items()}
            for names, each in digests.items()
        }
        self._v4 = _steps({network: each for network, each in networks.items() if network.version == 4})
        self._v6 = _steps({network: each for network, each in networks.items() if network.version == 6})

        self.kinds: frozenset[str] = frozenset(kind for kind, _value in named) | ({"ip"} if networks else frozenset())

    def __bool__(self) -> bool:
        return bool(self._named or self.digests or self._v4[0] or self._v6[0])

    def lookup(
        self,
        ip: str | None,
        user_id: str | None,
        api_key: str | None,
        now: float | None = None,
        digests_of: Callable[[Names], Iterable[str]] | None = None,
    ) -> AccessRecord | None:
        """Return the record that applies to a caller; `None` = there is none.

        ip: the whole address, not a network. api_key: the hash of a known key. now: seconds since the Unix epoch,
        `None` = the time of this machine. digests_of: returns the digests of the caller as counted by these names.
        """
        if self.digests and digests_of is not None:
            return self._lookup_digests(ip, user_id, api_key, digests_of, now)
        named = self._named
        if named:
            if api_key is not None and (entry := named.get(("api_key", api_key))):
                record = _unexpired(entry, now)
                if record is not None:
                    return record
            if user_id is not None and (entry := named.get(("user", user_id))):
                record = _unexpired(entry, now)
                if record is not None:
                    return record
        if ip is None:
            return None
        try:
            if ":" in ip:
                (starts, entries), number = self._v6, int.from_bytes(inet_pton(AF_INET6, ip))
            else:
                (starts, entries), number = self._v4, int.from_bytes(inet_pton(AF_INET, ip))
        except (OSError, ValueError):  # not an address
            return None
        position = bisect_right(starts, number) - 1
        found = entries[position] if position >= 0 else None
        return None if found is None else _unexpired(found, now)

    def _lookup_digests(
        self,
        ip: str | None,
        user_id: str | None,
        api_key: str | None,
        digests_of: Callable[[Names], Iterable[str]],
        now: float | None,
    ) -> AccessRecord | None:
        """Look up in the order of ranks, each time the value and then its digest; of an address the digest first."""
        by_rank: list[AccessRecord | None] = [None] * 4
        for names, entries in self.digests.items():
            for digest in digests_of(names):
                if (entry := entries.get(digest)) and (record := _unexpired(entry, now)):
                    by_rank[_rank(names)] = record
        key, user = self.lookup(None, None, api_key, now), self.lookup(None, user_id, None, now)
        found = (key, by_rank[0], user, *by_rank[1:], self.lookup(ip, None, None, now))
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


def _steps(networks: Mapping[IPv4Network | IPv6Network, list[AccessRecord]]) -> _Steps:
    """Return the networks as steps. They are nested or disjoint, so a stack holds those around each point."""
    starts: list[int] = []
    entries: list[_Entry | None] = []
    around: list[tuple[int, _Entry]] = []  # where each ends, the widest first

    def step(at: int) -> None:
        if starts and starts[-1] == at:
            starts.pop()
            entries.pop()
        starts.append(at)
        entries.append(around[-1][1] if around else None)

    def leave(before: int | None) -> None:
        while around and (before is None or around[-1][0] <= before):
            end, _entry = around.pop()
            step(end)

    def order(network: IPv4Network | IPv6Network) -> tuple[int, int]:
        return int(network.network_address), network.prefixlen

    for network in sorted(networks, key=order):
        start = int(network.network_address)
        leave(start)
        around.append((start + network.num_addresses, _stacked(networks[network], around[-1][1] if around else None)))
        step(start)
    leave(None)
    return starts, entries


def _stacked(records: Iterable[AccessRecord], otherwise: _Entry | None) -> _Entry:
    """Return records for one value as a stack on `otherwise`: those that deny on top, then by longest lifetime."""
    entry = otherwise

    def weight(record: AccessRecord) -> tuple[bool, float]:
        return record.action == "deny", float("inf") if record.expires_at is None else record.expires_at

    for record in sorted(records, key=weight):
        entry = _Entry(record, entry)
    assert entry is not None
    return entry


def _unexpired(entry: _Entry | None, now: float | None) -> AccessRecord | None:
    while entry is not None:
        record = entry.record
        if record.expires_at is None:
            return record
        if now is None:
            now = time()
        if now < record.expires_at:
            return record
        entry = entry.otherwise
    return None


#: An empty list: the rules apply to all callers.
NOBODY: Final = AccessList(())
