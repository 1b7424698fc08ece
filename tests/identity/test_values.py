"""Session, header, part of the path, and identities of one's own; and how a partition is written."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.contrib.sessions.backends import cache as cached
from django.contrib.sessions.backends import db, file, signed_cookies
from django.core.exceptions import SynchronousOnlyOperation
from django.db import OperationalError
from django.test import RequestFactory, override_settings
from django.utils.functional import SimpleLazyObject
from hypothesis import example, given
from hypothesis import strategies as st

from django_ratelimiter.databases import spelled
from django_ratelimiter.identity import identify, partition
from django_ratelimiter.inspection.caller import UnknownCaller, caller_of
from django_ratelimiter.values.partitions import IDENTITIES, MAX_VALUE, encode_partition, is_identity, partition_names

STORES: Any = [db.SessionStore, cached.SessionStore, file.SessionStore, signed_cookies.SessionStore]


def value(name: str, **parts: Any) -> str | None:
    """What a request with these attributes has under a name."""
    request = SimpleNamespace(**{"META": {}, "resolver_match": None} | parts)
    return identify(request).value(name)  # type: ignore[arg-type]


@pytest.mark.django_db
@pytest.mark.parametrize("store", STORES)
class TestSession:
    def test_one_that_is_kept_counts_by_its_key(self, store: Any) -> None:
        kept = store()
        kept["cart"] = [1]
        kept.save()
        found = value("session", session=store(kept.session_key))
        assert (found == kept.session_key) is (store is not signed_cookies.SessionStore)
        again = store(kept.session_key)
        assert value("session", session=again) == found
        again["cart"] = [1, 2]
        again.save()
        assert value("session", session=store(again.session_key)) == found
        is_key = found == again.session_key
        with nullcontext() if is_key else pytest.raises(UnknownCaller, match="content of a session"):
            assert caller_of("partition", f"session={again.session_key}").known["session"] == found

    @pytest.mark.parametrize("key", [None, "", "short", "a" * 32, "a:b:c", "x" * 100_000, "\x00\udcff" * 20])
    def test_an_invented_one_is_none(self, store: Any, key: str | None) -> None:
        assert value("session", session=store(key)) is None

    def test_one_without_anything_in_it_is_none(self, store: Any) -> None:
        assert value("session", session=store()) is value("session") is None

    def test_one_that_has_just_begun_has_no_key_yet(self, store: Any) -> None:
        begun = store()
        begun["cart"] = [1]
        found = value("session", session=begun)
        assert found is None or found == begun.session_key


class Broken:
    session_key = "k" * 32

    def __init__(self, error: Exception) -> None:
        self.error = error

    def keys(self) -> Any:
        raise self.error


def test_a_session_that_cannot_be_read_is_missing_and_told(caplog: pytest.LogCaptureFixture) -> None:
    for error in (OperationalError("gone"), ConnectionError("gone"), ValueError("garbage")):
        caplog.clear()
        assert value("session", session=Broken(error)) is None
        assert "session" in caplog.text
    with pytest.raises(SynchronousOnlyOperation):
        value("session", session=Broken(SynchronousOnlyOperation()))


@pytest.mark.parametrize("error", [OperationalError("gone"), PermissionError("expired"), ValueError("NUL")])
def test_a_user_that_cannot_be_found_is_anonymous_and_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def find() -> Any:
        raise error

    assert value("user", user=SimpleLazyObject(find)) is None
    assert "anonymous" in caplog.text
    caplog.clear()
    on_a_loop = identify(SimpleNamespace(META={}, user=SimpleLazyObject(find)))  # type: ignore[arg-type]
    async_to_sync(on_a_loop.read_user)()
    assert on_a_loop.user_id is None
    assert "anonymous" in caplog.text


@pytest.mark.parametrize("name", ["user", "session", "tenant"])
def test_of_code_that_fails_only_the_type_and_the_place_are_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message may contain what the request has sent; a traceback lets tools record it with the local variables."""
    error = KeyError("s3cret from 192.0.2.7")

    def find() -> Any:
        raise error

    parts = {"user": SimpleLazyObject(find), "session": Broken(error)}
    if name == "tenant":
        assert own(path=f"{__name__}.reject_tenant") is None
    else:
        assert value(name, **{name: parts[name]}) is None
    [record] = caplog.records
    assert f"KeyError at {__file__}:" in record.getMessage()
    assert record.exc_info is None
    assert "s3cret" not in caplog.text


def reject_tenant(request: Any) -> Any:
    raise KeyError("s3cret")


@pytest.mark.parametrize(
    ("name", "sent", "found"),
    [
        ("header:X-Device", "a1", "a1"),
        ("header:X_Device", "a1", "a1"),
        ("header:X-Device", " \ta1 ", "a1"),
        ("header:X-Device", "", None),
        ("header:X-Device", "caf\xe9", "caf\xe9"),
        ("header:X-Other", "a1", None),
    ],
)
def test_a_header(name: str, sent: str, found: str | None) -> None:
    assert value(name, META={"HTTP_X_DEVICE": sent}) == found


def test_the_headers_that_wsgi_names_otherwise() -> None:
    request = RequestFactory().post("/", b"{}", content_type="text/x-own")
    assert identify(request).value("header:Content-Type") == "text/x-own"
    assert identify(request).value("header:content-length") == "2"


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("ACME.example.com:8443", "acme.example.com"),
        ("acme.example.com.", "acme.example.com"),
        ("acme.example.org", None),
        ("a b", None),
        ("acme.example.com/\u0000", None),
        ("", None),
    ],
)
def test_a_host_is_one_that_django_allows(sent: str, found: str | None, settings: Any) -> None:
    settings.ALLOWED_HOSTS = [".example.com"]
    assert identify(RequestFactory().get("/", HTTP_HOST=sent)).value("host") == found
    assert spelled("host", sent) == (found or "acme.example.org" * (sent == "acme.example.org"))


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("app=a1", "a1"),
        ("app=a1&app=+b%C3%A9+&x=1", "bé"),
        ("app=", None),
        ("apps=1", None),
        ("app=%FF", "\ufffd"),
        ("app=a1" + "&x=1" * 1_001, None),
    ],
)
def test_a_parameter_of_the_query(query: str, found: str | None) -> None:
    assert identify(RequestFactory().get("/", QUERY_STRING=query)).value("query:app") == found


@pytest.mark.parametrize(("cookie", "found"), [("a=1; cart= c7 ", "c7"), ("cart=", None), ("a=1", None), ("", None)])
def test_a_cookie(cookie: str, found: str | None) -> None:
    assert identify(RequestFactory().get("/", HTTP_COOKIE=cookie)).value("cookie:cart") == found


@pytest.mark.parametrize(
    ("name", "address", "found"),
    [
        ("ip/48", "2001:db8:1:2::7", "2001:db8:1::/48"),
        ("ip/48", "192.0.2.7", None),
        ("ip/24", "192.0.2.7", "192.0.2.0/24"),
        ("ip/24", "::ffff:192.0.2.7", "192.0.2.0/24"),
        ("ip/24", "2001:db8::7", None),
        ("ip/24", "64:ff9b::192.0.2.7", "192.0.2.0/24"),
        ("ip/48", "", None),
    ],
)
def test_a_network_of_addresses(name: str, address: str, found: str | None) -> None:
    assert value(name, META={"REMOTE_ADDR": address}) == found


@pytest.mark.parametrize(
    ("captured", "found"),
    [
        ("acme", "acme"),
        (7, "7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("", None),
        (None, None),
    ],
)
def test_a_part_of_the_path(captured: Any, found: str | None) -> None:
    assert value("path:org", resolver_match=SimpleNamespace(kwargs={"org": captured})) == found


def test_a_path_without_that_part_or_without_a_view() -> None:
    assert value("path:org", resolver_match=SimpleNamespace(kwargs={})) is None
    assert value("path:org") is None


def test_a_captured_object_that_is_no_text_is_missing_and_told(caplog: pytest.LogCaptureFixture) -> None:
    assert value("path:org", resolver_match=SimpleNamespace(kwargs={"org": object()})) is None
    assert "path:org" in caplog.text


def tenant_of(request: Any) -> Any:
    return request.tenant


async def tenant_some_day(request: Any) -> str:
    return "acme"


def own(name: str = "tenant", path: str = "tests.identity.test_values.tenant_of", **parts: Any) -> str | None:
    with override_settings(RATELIMITER={"IDENTITIES": {"tenant": path}}):
        return value(name, **parts)


@pytest.mark.parametrize(("tenant", "found"), [("acme", "acme"), (7, "7"), ("", None), (None, None)])
def test_an_identity_of_ones_own(tenant: Any, found: str | None) -> None:
    assert own(tenant=tenant) == found


def test_an_identity_that_nobody_made_is_missing() -> None:
    assert own("shoe_size") is None


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("tests.identity.test_values.tenant_of", {}),
        ("tests.identity.test_values.tenant_of", {"tenant": object()}),
        ("tests.identity.test_values.tenant_some_day", {}),
        ("tests.identity.test_values.nobody", {}),
        ("no.such.module", {}),
    ],
)
def test_an_identity_of_ones_own_that_fails_is_missing_and_told(
    path: str, parts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert own(path=path, **parts) is None
    assert "tenant" in caplog.text


def test_what_may_take_a_while_is_left_to_a_thread_by_event_loops() -> None:
    asked = []
    for name, parts in (("session", {"session": db.SessionStore("a" * 32)}), ("tenant", {"tenant": "acme"})):
        request = SimpleNamespace(META={}, **parts)

        async def on_a_loop(name: str = name, request: Any = request) -> None:
            with pytest.raises(SynchronousOnlyOperation):
                identify(request).value(name)
            asked.append(name)

        with override_settings(RATELIMITER={"IDENTITIES": {"tenant": "tests.identity.test_values.tenant_of"}}):
            asyncio.run(on_a_loop())
    assert asked == ["session", "tenant"]


def test_a_combination_is_missing_without_one_of_its_parts() -> None:
    found = identify(SimpleNamespace(META={"HTTP_X_A": "1", "REMOTE_ADDR": "192.0.2.7"}, resolver_match=None))  # type: ignore[arg-type]
    assert partition(found, ["ip", "header:X-A"]) == "ip:192.0.2.7|header:X-A:1"
    assert partition(found, ["ip", "header:X-B"]) is None


@pytest.mark.parametrize(
    "name",
    [
        *IDENTITIES,
        *["tenant", "_t", "header:X-A", "header:x_a", "path:pk", "field:a.b", "field:items[0]", "field:é", "ip/48"],
        *["query:app", "query:filter[a]", "cookie:cart", "cookie:__Host-a.b"],
    ],
)
def test_names_that_rules_may_be_split_by(name: str) -> None:
    assert is_identity(name)
    assert partition_names(f"{name}:v:w") == (name,)
    assert partition_names(f"{name}:") == partition_names(name) == ("",)


@pytest.mark.parametrize(
    "name",
    [
        *["", "header", "path", "field", "header:", "path:", "field:", "header:A:B", "header:É", "path:a-b", "path:1"],
        *["field:a b", "field:a|b", "field:a:b", "field:a%b", "1st", "a-b", "é", "user ", "user\n", "header:X-A\n"],
        *[
            "a" * 65,
            "ip/",
            "ip/0",
            "ip/129",
            "ip/a",
            "user/48",
            "ip/48:1",
            "cookie:",
            "cookie:a=b",
            "cookie:a|b",
            "cookie:a%b",
            "query",
            7,
            None,
            [],
        ],
        *["header:" + "a" * 101, "field:" + "a" * 101],
    ],
)
def test_names_that_they_may_not(name: object) -> None:
    assert not is_identity(name)


names = st.one_of(
    st.sampled_from(
        [
            *IDENTITIES,
            "tenant",
            "userx",
            "header:X",
            "header:X-user",
            "path:a",
            "field:a",
            "field:user",
            "query:a",
            "cookie:a",
        ]
    ),
    st.from_regex(r"field:[^\s|%:]{1,9}", fullmatch=True),
)
values = st.one_of(
    st.text(min_size=1), st.sampled_from(["|", "%", "%25", "|user:1", "a:b", ":", "%7C", "v" * MAX_VALUE])
)
parts = st.lists(st.tuples(names, values), min_size=1, max_size=3)


@given(parts, parts)
@example([("user", "1|ip:2")], [("user", "1"), ("ip", "2")])
@example([("header:X", "a:b")], [("header:X", "a"), ("field:b", "x")])
@example([("user", "v" * 201)], [("user", "%sha256-" + "0" * 64)])
@example([("user", "v" * 201)], [("user", "v" * 202)])
def test_only_the_same_names_and_values_are_written_alike(one: Any, other: Any) -> None:
    assert (encode_partition(one) == encode_partition(other)) == (one == other)


@given(parts)
def test_a_partition_tells_what_its_parts_are_values_of(one: Any) -> None:
    assert partition_names(encode_partition(one)) == tuple(name for name, _ in one)


@given(st.text(min_size=1, max_size=5).map(lambda text: text * 5_000), names)
def test_no_value_makes_a_partition_long(long: str, name: str) -> None:
    assert len(encode_partition([(name, long)])) < 3 * MAX_VALUE + 120
