"""The access list against the plain way: looking at every record, with the `ipaddress` module."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_ratelimiter.values.access import AccessList, AccessRecord, network_of

NOW = 1_000.0


def record(action: str, kind: str, value: str, expires_at: float | None = None) -> AccessRecord:
    return AccessRecord(action, kind, value, expires_at)


def found(*records: AccessRecord, ip: str | None = None, user: str | None = None, key: str | None = None) -> Any:
    """The action for a caller, and for whom it was meant."""
    counts = AccessList(records).lookup(ip, user, key, NOW)
    return None if counts is None else (counts.action, counts.value)


def naive(records: list[AccessRecord], ip: str, user: str, key: str) -> AccessRecord | None:
    """Look at every record that is in force, the most telling kind first."""
    alive = [each for each in records if each.expires_at is None or each.expires_at > NOW]
    for kind, value in (("api_key", key), ("user", user)):
        meant = [each for each in alive if (each.kind, each.value) == (kind, value)]
        if meant:
            return max(meant, key=lambda each: each.action == "deny")
    address = ip_address(ip)
    around = [each for each in alive if each.kind == "ip" and address in network_of(each.value)]
    return max(around, key=lambda each: (network_of(each.value).prefixlen, each.action == "deny"), default=None)


def network(version: int, number: int, length: int) -> str:
    bits = 32 if version == 4 else 128
    start = number % (1 << bits) >> (bits - length) << (bits - length)
    return f"{(IPv4Address if version == 4 else IPv6Address)(start)}/{length}"


#: Few bits vary, at both ends, so that networks contain one another and touch.
numbers = st.tuples(st.integers(0, 15), st.integers(0, 15)).map(lambda n: n[0] << 124 | n[0] << 28 | n[1])
numbers |= st.sampled_from([0, (1 << 128) - 1, 0x2001_0DB8 << 96 | 0xC000_0200])
networks = st.builds(
    lambda version, number, length: network(version, number, min(length, 32 if version == 4 else 128)),
    st.sampled_from([4, 6]),
    numbers,
    st.sampled_from([0, 1, 4, 8, 24, 28, 30, 31, 32, 64, 124, 127, 128]),
)
records = st.builds(
    AccessRecord,
    st.sampled_from(["allow", "deny"]),
    st.just("ip"),
    networks,
    st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
) | st.builds(
    AccessRecord,
    st.sampled_from(["allow", "deny"]),
    st.sampled_from(["user", "api_key"]),
    st.sampled_from(["1", "2"]),
    st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
)
callers = st.tuples(
    st.builds(
        lambda version, number: network(version, number, 32 if version == 4 else 128), st.sampled_from([4, 6]), numbers
    ),
    st.sampled_from(["1", "3"]),
    st.sampled_from(["2", "3"]),
)


@given(st.lists(records, max_size=25), st.lists(callers, min_size=1, max_size=8))
@example(
    [record("deny", "ip", "0.0.0.0/0"), record("allow", "ip", "255.255.255.255")], [("255.255.255.255/32", "", "")]
)
def test_the_same_counts_as_if_every_record_was_looked_at(entries: list[AccessRecord], asked: Any) -> None:
    access = AccessList(entries)
    assert access.left_out == []
    assert bool(access) == bool(entries)
    for written, user, key in asked:
        ip = written.partition("/")[0]
        counts, expected = access.lookup(ip, user, key, NOW), naive(entries, ip, user, key)
        assert (counts and counts[:3]) == (expected and expected[:3])


def test_what_has_expired_gives_way_to_what_is_around_it() -> None:
    entries = [record("deny", "ip", "192.0.2.0/24"), record("allow", "ip", "192.0.2.1", NOW)]
    assert AccessList(entries).lookup("192.0.2.1", None, None, NOW - 0.001) == entries[1]
    assert AccessList(entries).lookup("192.0.2.1", None, None, NOW) == entries[0]
    assert AccessList(entries).lookup("192.0.2.1", None, None) == entries[0]  # by this machine's time
    assert found(record("deny", "user", "7", NOW - 1), record("allow", "ip", "::1"), user="7", ip="::1") == (
        "allow",
        "::1",
    )


def test_ipv4_inside_ipv6_is_ipv4() -> None:
    assert found(record("deny", "ip", "::ffff:192.0.2.0/120"), ip="192.0.2.9") == ("deny", "::ffff:192.0.2.0/120")
    assert found(record("deny", "ip", "::/0"), ip="192.0.2.9") is None
    assert found(record("deny", "ip", "0.0.0.0/0"), ip="2001:db8::1") is None


@pytest.mark.parametrize(
    "ip", ["", "unix:", "192.0.2", "192.0.2.0/24", "fe80::1%eth0", ":", "\x00", "a" * 10_000, "\udcff", None]
)
def test_what_is_no_address_is_known_to_nobody(ip: str | None) -> None:
    assert found(record("deny", "ip", "0.0.0.0/0"), record("deny", "ip", "::/0"), ip=ip) is None


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record("deny", "ip", "192.0.2.1/24"), "host bits"),
        (record("deny", "ip", "example.com"), "example.com"),
        (record("deny", "ip", "fe80::1%eth0"), "zone"),
        (record("deny", "ip", ""), "empty"),
        (record("deny", "user", ""), "empty"),
        (record("hide", "user", "7"), "action"),
        (record("deny", "cookie", "7"), "kind"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_out_and_the_rest_counts(bad: AccessRecord, reason: str) -> None:
    access = AccessList([bad, record("allow", "user", "8")])
    [(left, why)] = access.left_out
    assert left == bad
    assert reason in why
    assert access.lookup(None, "8", None) == record("allow", "user", "8")


def test_it_says_what_it_asks_about() -> None:
    assert AccessList(()).kinds == frozenset()
    assert AccessList([record("deny", "user", "7"), record("warn", "api_key", "7")]).kinds == {"user"}
    everything = [record("deny", kind, value) for kind, value in (("ip", "::1"), ("user", "7"), ("api_key", "k"))]
    assert AccessList(everything).kinds == {"ip", "user", "api_key"}


def test_a_digest_ranks_behind_the_value_and_an_address_before_networks() -> None:
    digests = {("api_key",): ["k" * 22], ("user",): ["u" * 22], ("ip",): ["i" * 22], ("header:X-Org",): ["o" * 22]}
    in_order = [
        record("allow", "api_key", "key"), record("deny", "digest", f"api_key:{'k' * 22}"),
        record("allow", "user", "7"), record("deny", "digest", f"path:pk or user:{'u' * 22}"),
        record("allow", "digest", f"header:X-Org:{'o' * 22}"),
        record("deny", "digest", f"user or ip:{'i' * 22}"), record("allow", "ip", "192.0.2.0/24"),
    ]  # fmt: skip
    for place, first in enumerate(in_order):
        entries = AccessList(reversed(in_order[place:]))
        assert entries.lookup("192.0.2.7", "7", "key", NOW, lambda names: digests.get(names, [])) == first


def test_only_the_named_digests_are_asked_for_and_expire() -> None:
    asked = list[object]()
    entries = AccessList([record("deny", "digest", f"ip:{'i' * 22}", NOW), record("deny", "digest", "nonsense")])
    assert [each.value for each, _ in entries.left_out] == ["nonsense"]
    assert entries
    for now, is_found in ((NOW - 1, True), (NOW, False)):
        found = entries.lookup(None, None, None, now, lambda names: asked.append(names) or ["x", "i" * 22])
        assert bool(found) is is_found
    assert asked == [("ip",)] * 2
