"""Identities: each part is found, none is invented, and nobody can choose an address."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import models
from django.test import RequestFactory, override_settings
from django.test.utils import isolate_apps
from django.utils.functional import SimpleLazyObject
from hypothesis import example, given
from hypothesis import strategies as st

from django_ratelimiter import identity
from django_ratelimiter.identity import digest, hash_api_key, identify, partition
from django_ratelimiter.values.digests import keyed_digest


def ip_of(peer: str | None, forwarded: str | None = None, pairs: str | None = None, **entries: Any) -> str | None:
    """The address found for a peer, what X-Forwarded-For says and what Forwarded says, under these settings."""
    sent = (("REMOTE_ADDR", peer), ("HTTP_X_FORWARDED_FOR", forwarded), ("HTTP_FORWARDED", pairs))
    meta = {name: value for name, value in sent if value is not None}
    with override_settings(RATELIMITER=entries):
        return identify(SimpleNamespace(META=meta)).ip  # type: ignore[arg-type]


NETWORKS = ["10.0.0.0/8", "fd00::/8", "unix"]

#: peer, X-Forwarded-For, TRUSTED_PROXIES, the client
WALKS = [
    # Nobody is trusted by default.
    ("203.0.113.9", None, (), "203.0.113.9"),
    ("203.0.113.9", "198.51.100.1", (), "203.0.113.9"),
    ("203.0.113.9", "198.51.100.1", NETWORKS, "203.0.113.9"),
    # A trusted peer is believed, as far as trusted hops go.
    ("10.0.0.1", "6.6.6.6, 198.51.100.1", NETWORKS, "198.51.100.1"),
    ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2,10.0.0.3", NETWORKS, "198.51.100.1"),
    ("fd00::1", "2001:db8::1", NETWORKS, "2001:db8::/64"),
    ("::ffff:10.0.0.1", "198.51.100.1", NETWORKS, "198.51.100.1"),
    # All hops are trusted: the farthest one asks.
    ("10.0.0.1", None, NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "10.0.0.9, 10.0.0.2", NETWORKS, "10.0.0.9"),
    # A hop that is no address: the trusted hop that reported it.
    ("10.0.0.1", "unknown", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "198.51.100.1, unknown, 10.0.0.2", NETWORKS, "10.0.0.2"),
    ("10.0.0.1", "198.51.100.1,", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", ",", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "198.51.100.1, \xff\x00'\"", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "198.51.100.1, 10.0.0.2" + "2" * 5000, NETWORKS, "10.0.0.1"),
    ("10.0.0.1", ", ".join(["10.1.1.1"] * 500), NETWORKS, "10.1.1.1"),
    # A number of hops, whoever they are.
    ("203.0.113.9", "6.6.6.6, 198.51.100.1", 1, "198.51.100.1"),
    ("203.0.113.9", "6.6.6.6, 198.51.100.1, 192.0.2.7", 2, "198.51.100.1"),
    ("203.0.113.9", None, 1, "203.0.113.9"),
    ("203.0.113.9", "198.51.100.1", 5, "198.51.100.1"),
    ("203.0.113.9", "198.51.100.1, unknown", 2, "203.0.113.9"),
    # A Unix socket has no address. A counted hop may be one.
    ("", None, NETWORKS, None),
    ("", "6.6.6.6, 198.51.100.1, 10.0.0.2", NETWORKS, "198.51.100.1"),
    ("", "unknown", NETWORKS, None),
    ("unix:", "198.51.100.1", NETWORKS, "198.51.100.1"),
    ("localhost", "198.51.100.1", NETWORKS, "198.51.100.1"),
    ("localhost", "198.51.100.1", 1, "198.51.100.1"),
    ("", "198.51.100.1", ["10.0.0.0/8"], None),
    ("", "6.6.6.6, 198.51.100.1", 1, "198.51.100.1"),
    (None, None, (), None),
    (None, "198.51.100.1", NETWORKS, "198.51.100.1"),
    ("10.0.0.1", "", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "198.51.100.1, unix:", NETWORKS, "10.0.0.1"),
    ("a socket", "198.51.100.1", NETWORKS, None),
    # Ways to write a hop.
    ("10.0.0.1:4711", "198.51.100.1:80", NETWORKS, "198.51.100.1"),
    ("[fd00::1]:4711", "[2001:db8::1]:80", NETWORKS, "2001:db8::/64"),
    ("10.0.0.1", "[2001:db8::1]", NETWORKS, "2001:db8::/64"),
    ("10.0.0.1", "fe80::1%eth0", NETWORKS, "fe80::/64"),
    ("10.0.0.1", "[fe80::1%25eth0]:80", NETWORKS, "fe80::/64"),
    ("10.0.0.1", "\t198.51.100.1 ", NETWORKS, "198.51.100.1"),
    ("10.0.0.1", "198.51.100.1%eth0", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "198.51.100.01", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "198.51.100.1:port", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "fe80::1%" + "e" * 5000, NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "fe80::1%", NETWORKS, "10.0.0.1"),
    ("10.0.0.1", "\uff1198.51.100.1", NETWORKS, "10.0.0.1"),
]


@pytest.mark.parametrize(("peer", "forwarded", "trusted", "client"), WALKS)
def test_the_client_is_the_first_hop_that_is_not_trusted(
    peer: str | None, forwarded: str | None, trusted: Any, client: str | None
) -> None:
    assert ip_of(peer, forwarded, TRUSTED_PROXIES=trusted) == client


#: Forwarded, TRUSTED_PROXIES, the client for the peer 10.0.0.1
PAIRS = [
    ("for=198.51.100.1", NETWORKS, "198.51.100.1"),
    ("For=198.51.100.1;Proto=https;by=10.0.0.1", NETWORKS, "198.51.100.1"),
    ("proto=https ; for=198.51.100.1", NETWORKS, "198.51.100.1"),
    ("for=6.6.6.6, for=198.51.100.1,for=10.0.0.2", NETWORKS, "198.51.100.1"),
    ("for=6.6.6.6, for=198.51.100.1, for=192.0.2.7", 2, "198.51.100.1"),
    ('for="198.51.100.1:4711"', NETWORKS, "198.51.100.1"),
    ('for="198.51.100.1:_hidden"', NETWORKS, "198.51.100.1"),
    ('for="[2001:db8::1]:4711"', NETWORKS, "2001:db8::/64"),
    ("for=[2001:db8::1]:4711", NETWORKS, "2001:db8::/64"),
    ("for=2001:db8::1", NETWORKS, "2001:db8::/64"),
    (r'for="198\.51.100.1"', NETWORKS, "198.51.100.1"),
    ('for="::ffff:198.51.100.1"', NETWORKS, "198.51.100.1"),
    # What is no address ends the walk.
    ("for=198.51.100.1, for=unknown", NETWORKS, "10.0.0.1"),
    ("for=198.51.100.1, for=unknown, for=10.0.0.2", NETWORKS, "10.0.0.2"),
    ("for=198.51.100.1, by=10.0.0.9", NETWORKS, "10.0.0.1"),
    ("for=198.51.100.1, for=", NETWORKS, "10.0.0.1"),
    ("for=198.51.100.1,", NETWORKS, "10.0.0.1"),
    ("198.51.100.1", NETWORKS, "10.0.0.1"),
    ("for=198.51.100.1;for=6.6.6.6", NETWORKS, "10.0.0.1"),
    ("for = 198.51.100.1", NETWORKS, "10.0.0.1"),
    ('for="198.51.100.1', NETWORKS, "10.0.0.1"),
    ('for=198.51.100.1"', NETWORKS, "10.0.0.1"),
    ("for=198.51.100.1;\xff", NETWORKS, "10.0.0.1"),
    ("for=198.51.100.1;host=" + "a" * 5_000, NETWORKS, "10.0.0.1"),
    (",".join(["for=10.1.1.1"] * 500), NETWORKS, "10.1.1.1"),
    # A comma inside quotes: the client may have chosen what follows it.
    ('for=198.51.100.1;host="a, for=6.6.6.6"', NETWORKS, "10.0.0.1"),
    (r'for=198.51.100.1;host="a, for=6.6.6.6;b=\"c"', NETWORKS, "10.0.0.1"),
    # A quote that the client left open swallows nothing.
    ('for="6.6.6.6, for=198.51.100.1', NETWORKS, "198.51.100.1"),
    ("for=198.51.100.1", (), "10.0.0.1"),
    ("for=198.51.100.1", [*NETWORKS, "x-forwarded-for"], "10.0.0.1"),
    ("for=198.51.100.1", [1, "forwarded"], "198.51.100.1"),
]


@pytest.mark.parametrize(("pairs", "trusted", "client"), PAIRS)
def test_forwarded_tells_the_same(pairs: str, trusted: Any, client: str) -> None:
    assert ip_of("10.0.0.1", None, pairs, TRUSTED_PROXIES=trusted) == client


def test_of_two_headers_one_is_read() -> None:
    both = ("10.0.0.1", "198.51.100.1", "for=203.0.113.7")
    assert ip_of(*both, TRUSTED_PROXIES=NETWORKS) == "198.51.100.1"
    assert ip_of(*both, TRUSTED_PROXIES=[*NETWORKS, "x-forwarded-for"]) == "198.51.100.1"
    assert ip_of(*both, TRUSTED_PROXIES=[*NETWORKS, "forwarded"]) == "203.0.113.7"
    assert ip_of("10.0.0.1", "198.51.100.1", None, TRUSTED_PROXIES=[*NETWORKS, "forwarded"]) == "10.0.0.1"
    assert ip_of("10.0.0.1", "", "for=203.0.113.7", TRUSTED_PROXIES=NETWORKS) == "10.0.0.1"
    assert ip_of("10.0.0.1", None, "for=203.0.113.7", TRUSTED_PROXIES=NETWORKS) == "203.0.113.7"


def test_the_whole_address_is_known_too() -> None:
    found = identify(SimpleNamespace(META={"REMOTE_ADDR": "2001:db8::1:2:3:4%eth0"}))  # type: ignore[arg-type]
    assert (found.ip, found.address) == ("2001:db8::/64", "2001:db8::1:2:3:4")
    assert identify(SimpleNamespace(META={"REMOTE_ADDR": "::ffff:192.0.2.7"})).address == "192.0.2.7"  # type: ignore[arg-type]
    assert identify(SimpleNamespace(META={})).address is None  # type: ignore[arg-type]
    assert identify(SimpleNamespace(META={"REMOTE_ADDR": "?"})).address is None  # type: ignore[arg-type]


def test_addresses_are_cut_to_their_prefix() -> None:
    assert ip_of("203.0.113.77", IPV4_PREFIX=24) == "203.0.113.0/24"
    assert ip_of("203.0.113.77", IPV4_PREFIX=32) == "203.0.113.77"
    assert ip_of("2001:db8:1:2:3:4:5:6") == ip_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert ip_of("2001:db8:1:2::9") != ip_of("2001:db8:1:3::9")
    assert ip_of("2001:db8:1:2:3:4:5:6", IPV6_PREFIX=48) == "2001:db8:1::/48"
    assert ip_of("2001:db8::6", IPV6_PREFIX=128) == "2001:db8::6"


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.77", "203.0.113.77"),
        ("::ffff:203.0.113.77", "203.0.113.77"),
        ("::ffff:cb00:714d", "203.0.113.77"),
        ("::203.0.113.77", "203.0.113.77"),
        ("64:ff9b::203.0.113.77", "203.0.113.77"),
        ("64:ff9b:1::cb00:714d", "203.0.113.77"),
        ("2001:0:4136:e378:8000:63bf:34ff:8eb2", "203.0.113.77"),
        ("::1", "::/64"),
        ("64:ff9b::", "64:ff9b::/64"),
        ("64:ff9b:2::203.0.113.77", "64:ff9b:2::/64"),
        ("2002:cb00:714d:1::1", "2002:cb00:714d:1::/64"),
    ],
)
def test_an_ipv4_address_inside_ipv6_is_counted(address: str, counted: str) -> None:
    assert ip_of(address) == counted
    assert ip_of("10.0.0.1", address, TRUSTED_PROXIES=NETWORKS) == counted


def test_an_address_that_embeds_that_of_a_proxy_is_not_trusted() -> None:
    assert ip_of("64:ff9b::10.0.0.1", "198.51.100.1", TRUSTED_PROXIES=NETWORKS) == "10.0.0.1"
    assert identify(SimpleNamespace(META={"REMOTE_ADDR": "64:ff9b::a00:1"})).address == "64:ff9b::a00:1"  # type: ignore[arg-type]


def test_the_user_that_a_framework_returns_counts_if_the_request_has_no_other() -> None:
    def request(user: Any, auth: Any) -> Any:
        return SimpleNamespace(META={}, user=user, auth=auth)

    ann, bob = User(pk=1), User(pk=2)
    for user, auth, key in [
        (AnonymousUser(), ann, "1"),
        (None, ann, "1"),
        (bob, ann, "2"),
        (AnonymousUser(), "ann", None),
    ]:
        assert identify(request(user, auth)).user_id == key
    assert identify(request(None, AnonymousUser())).user_id is None


@pytest.mark.parametrize(
    ("peer", "sent", "client"),
    [
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "[2001:db8::7]:443", "2001:db8::/64"),
        ("", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "garbage", "10.0.0.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
    ],
)
@pytest.mark.parametrize("trusted", [NETWORKS, [1]])
def test_a_header_of_ones_own_choice_is_read_of_trusted_peers_only(
    trusted: list[object], peer: str, sent: str | None, client: str
) -> None:
    meta = {"REMOTE_ADDR": peer, "HTTP_X_FORWARDED_FOR": "6.6.6.6"} | ({"HTTP_CF_CONNECTING_IP": sent} if sent else {})
    expected = sent if trusted == [1] and peer == "203.0.113.9" else client  # each peer is trusted by its number
    with override_settings(RATELIMITER={"TRUSTED_PROXIES": [*trusted, "CF-Connecting-IP"]}):
        assert identify(SimpleNamespace(META=meta)).ip == expected  # type: ignore[arg-type]


def test_a_long_header_costs_little() -> None:
    forwarded = ", ".join(f"10.{n >> 8}.{n & 255}.1" for n in range(5000))
    started = time.process_time()
    assert ip_of("10.0.0.1", forwarded, TRUSTED_PROXIES=["10.0.0.0/8"]) == "10.0.0.1"
    assert time.process_time() - started < 1


class Device:
    def __init__(self, pk: Any, is_authenticated: bool = True) -> None:
        self.pk, self.is_authenticated = pk, is_authenticated


class Stateless(Device):
    """Stands for a row of the user model, as simplejwt's TokenUser does."""

    def get_username(self) -> str:
        return "ann"


def user_id_of(user: Any) -> str | None:
    return identify(SimpleNamespace(META={}, user=user)).user_id  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("user", "user_id"),
    [
        (User(pk=42), "42"),
        (SimpleLazyObject(lambda: User(pk=42)), "42"),
        (User(pk=None), None),
        (Stateless(42), "42"),
        (Stateless(UUID(int=1)), "00000000-0000-0000-0000-000000000001"),
        (Stateless("ann|b%"), "ann|b%"),
        (Stateless(42, is_authenticated=False), None),
        (Stateless(None), None),
        (Device(42), f"{__name__}.Device:42"),
        (Device(42, is_authenticated=False), None),
        (Device(None), None),
        (Device(""), None),
        (AnonymousUser(), None),
        (None, None),
    ],
)
def test_the_user_counts_once_authenticated(user: Any, user_id: str | None) -> None:
    assert user_id_of(user) == user_id


@isolate_apps("django.contrib.auth")
def test_only_rows_of_the_user_model_count_by_the_key_alone() -> None:
    """Number 7 of another model is not user 7; a proxy or a subclass of the user model has the users' numbers."""

    class Machine(models.Model):
        is_authenticated = True

        class Meta:
            app_label = "auth"

        def __str__(self) -> str:
            return "machine"

    class Robot(Machine):
        class Meta:
            app_label = "auth"
            proxy = True

        def __str__(self) -> str:
            return "robot"

    class Buyer(User):
        class Meta:
            app_label = "auth"
            proxy = True

    class Seller(User):
        class Meta:
            app_label = "auth"

    class Numbered(User):
        number = models.IntegerField(primary_key=True)
        user_ptr = models.OneToOneField(User, models.CASCADE, parent_link=True)

        class Meta:
            app_label = "auth"

    mine = [Machine(pk=7), Robot(pk=7), Buyer(pk=7), Seller(pk=7, user_ptr_id=7, id=7), Numbered(number=1, id=7)]
    assert [user_id_of(each) for each in mine] == ["auth.Machine:7", "auth.Machine:7", "7", "7", "7"]


def test_who_has_no_key_counts_as_anonymous_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert user_id_of(SimpleNamespace(is_authenticated=True)) is None
    assert "anonymous" in caplog.text


def test_a_request_without_authentication_has_no_user() -> None:
    assert identify(RequestFactory().get("/")).user_id is None


class Untouchable:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


def test_nothing_is_worked_out_that_no_rule_asks_for() -> None:
    found = identify(Untouchable())  # type: ignore[arg-type]
    assert partition(found, ()) == ""


def test_parts_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(identity, "is_known_api_key", lambda hashed, _address: asked.append(hashed) or True)
    request = RequestFactory().get("/", headers={"X-API-Key": "k1"})
    found = identify(request)
    assert found.api_key == found.api_key == hash_api_key("k1")
    assert asked == [hash_api_key("k1")]
    assert found.ip == "127.0.0.1"
    request.META["REMOTE_ADDR"] = "203.0.113.7"
    assert found.ip == "127.0.0.1"


@pytest.fixture
def known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assignments know these keys, whatever the database says."""
    hashes = {hash_api_key(key) for key in ("k1", "a" * 256, "b" * 257, "schlüssel")}
    monkeypatch.setattr(identity, "is_known_api_key", lambda hashed, _address: hashed in hashes)


@pytest.mark.usefixtures("known_keys")
@pytest.mark.parametrize(
    ("header", "counts_as"),
    [
        ("k1", "k1"),
        (" k1 ", "k1"),
        ("k2", None),
        ("", None),
        ("   ", None),
        ("a" * 256, "a" * 256),
        ("b" * 257, None),
        ("schlüssel", None),
    ],
)
def test_only_a_known_api_key_is_an_identity(header: str, counts_as: str | None) -> None:
    found = identify(RequestFactory().get("/", headers={"X-API-Key": header}))
    assert found.api_key == (hash_api_key(counts_as) if counts_as else None)


@pytest.mark.usefixtures("known_keys")
@pytest.mark.parametrize(
    ("name", "header", "value", "is_known"),
    [
        ("X-Client-Key", "X-Client-Key", "k1", True),
        ("X-Client-Key", "X-API-Key", "k1", False),
        ("authorization", "Authorization", "Api-Key k1", True),
        ("authorization", "Authorization", "Bearer  k1", True),
        ("authorization", "Authorization", "TOKEN k1 ", True),
        ("authorization", "Authorization", "k1", True),
        ("authorization", "Authorization", "Bearer k2", False),
        ("authorization", "Authorization", "Basic k1", False),
        ("authorization", "Authorization", "Digest k1", False),
        ("authorization", "Authorization", "Bearer", False),
        ("authorization", "Authorization", "Bearer k1 k1", False),
        ("authorization", "Authorization", "Bearerk1", False),
    ],
)
def test_the_header_is_a_setting_and_in_authorization_the_key_follows_the_scheme(
    name: str, header: str, value: str, is_known: bool
) -> None:
    with override_settings(RATELIMITER={"API_KEY_HEADER": name}):
        found = identify(RequestFactory().get("/", headers={header: value})).api_key
        assert found == (hash_api_key("k1") if is_known else None)


def test_the_hash_of_an_api_key_is_plain_sha256() -> None:
    assert hash_api_key("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def who(**parts: str | None) -> Any:
    return SimpleNamespace(value=parts.get)


def test_a_partition_names_its_parts_and_is_missing_without_one() -> None:
    assert partition(who(user="42", ip="203.0.113.7"), ["user", "ip"]) == "user:42|ip:203.0.113.7"
    assert partition(who(api_key="ab"), ["api_key"]) == "api_key:ab"
    assert partition(who(user="42"), ["user", "ip"]) is None
    assert partition(who(), ["api_key"]) is None


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
@example(("a", "b|api_key:c"), ("a|api_key:b", "c"))
@example(("|", ""), ("%7C", ""))
def test_two_identities_never_share_a_partition(one: tuple[str, str], other: tuple[str, str]) -> None:
    values = [partition(who(user=user, api_key=key), ["user", "api_key"]) for user, key in (one, other)]
    assert (values[0] == values[1]) == (one == other)


@given(st.text(alphabet=st.characters()))
def test_a_digest_fits_into_a_key_and_is_steady(value: str) -> None:
    found = digest(value)
    assert len(found) == 22
    assert found.isascii()
    assert not set(found) & set("{}|: ")
    assert digest(value) == found


def test_long_values_are_not_kept_in_memory() -> None:
    kept = keyed_digest.cache_info().currsize
    assert digest("x" * 1_000_000) == digest("x" * 1_000_000) != digest("x" * 1_000_001)
    assert keyed_digest.cache_info().currsize == kept


def test_digests_differ_by_value_and_by_key() -> None:
    seen = set()
    for key in ("one", "two"):
        with override_settings(RATELIMITER={"HASH_KEY": key}):
            seen |= {digest("user:1"), digest("user:2")}
    assert len(seen) == 4
