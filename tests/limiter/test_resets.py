"""Forgiving a caller from code, named as rules count it."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client, override_settings

from django_ratelimiter import limiter
from django_ratelimiter.decorators import is_ratelimited
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache

from ..making import MakeRule, request_of, update

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]


@pytest.fixture(autouse=True)
def _no_rules_in_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.rules.inline._registered", {})


Reset = Callable[..., list[str]]


@pytest.fixture
def reset(either: Any) -> Reset:
    return either(limiter.reset, limiter.areset)  # type: ignore[no-any-return]


def status(client: Client, **sent: Any) -> int:
    return client.post("/plain/", **sent).status_code


def uses_up(client: Client, **sent: Any) -> bool:
    """Whether the quota of 1 is there, and used now."""
    return [status(client, **sent), status(client, **sent)] == [200, 429]


@pytest.mark.parametrize("as_typed", [lambda user: user, lambda user: user.pk, lambda user: str(user.pk)])
def test_a_user_is_forgiven_and_nobody_else(
    client: Client, make_rule: MakeRule, people: None, reset: Reset, as_typed: Any
) -> None:
    make_rule("by-user", quota=1, partition_by=["user"], missing_partition="ip")
    ann, bob = User.objects.get(username="ann"), User.objects.get(username="bob")
    for user in (ann, bob):
        client.force_login(user)
        assert uses_up(client)
    assert reset(user=as_typed(ann)) == ["by-user"]
    assert status(client) == 429  # bob
    client.force_login(ann)
    assert uses_up(client)


@pytest.mark.parametrize(
    ("names", "sent", "given"),
    [
        (["ip"], {"REMOTE_ADDR": "192.0.2.7"}, {"ip": "192.0.2.7"}),
        (["ip"], {"REMOTE_ADDR": "2001:db8::1"}, {"ip": ip_address("2001:db8::ffff")}),
        (["field:username"], {"data": {"username": " Ann "}}, {"field:username": "ann"}),
        (["header:X-Org", "ip"], {"headers": {"X-Org": "acme"}}, {"header:X-Org": "acme", "ip": "127.0.0.1"}),
        (["tenant"], {"headers": {"X-Host-Tenant": "acme"}}, {"tenant": "acme"}),
        (["api_key"], {"headers": {"X-API-Key": "s3cret"}}, {"api_key": "s3cret"}),
        (["api_key"], {"headers": {"X-API-Key": "s3cret"}}, {"api_key": hash_api_key("s3cret")}),
        (["header:X-Org"], {"REMOTE_ADDR": "192.0.2.7"}, {"ip": "192.0.2.7"}),  # it stands in for the header
    ],
)
def test_each_identity_as_a_request_has_it(
    client: Client, make_rule: MakeRule, reset: Reset, names: list[str], sent: dict[str, Any], given: dict[str, Any]
) -> None:
    tier = Tier.objects.create(slug="t", name="T", rank=1)
    TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key("s3cret"))
    own = {"CACHE_ALIAS": "ratelimit", "IDENTITIES": {"tenant": "tests.entry_points.test_middleware.tenant_of"}}
    with override_settings(RATELIMITER=own):
        make_rule("r", quota=1, partition_by=names, missing_partition="ip")
        assert uses_up(client, **sent)
        assert reset(**given) == ["r"]
        assert uses_up(client, **sent)


def owner_of(raw: str) -> User | None:
    """An API_KEY_RESOLVER that returns a row."""
    return User.objects.filter(username=raw).first()


def test_a_row_that_the_resolver_returns(client: Client, make_rule: MakeRule, people: None, reset: Reset) -> None:
    make_rule("r", quota=1, partition_by=["api_key"])
    own = {"CACHE_ALIAS": "ratelimit", "API_KEY_RESOLVER": f"{__name__}.owner_of"}
    with override_settings(RATELIMITER=own):
        for given in (User.objects.get(username="ann"), f"auth.User:{User.objects.get(username='ann').pk}"):
            assert uses_up(client, headers={"X-API-Key": "ann"})
            assert reset(api_key=given) == ["r"]


def test_a_session(client: Client, make_rule: MakeRule, people: None, reset: Reset) -> None:
    make_rule("r", quota=1, partition_by=["session"])
    client.force_login(User.objects.get(username="ann"))
    for given in (client.session, client.session.session_key):
        assert uses_up(client)
        assert reset(session=given) == ["r"]


def test_only_the_named_rule_and_only_rules_of_these_values(client: Client, make_rule: MakeRule, reset: Reset) -> None:
    make_rule("one", quota=1, partition_by=["ip"])
    make_rule("two", quota=1, partition_by=["ip"])
    make_rule("both", quota=9, partition_by=["ip", "header:X-Org"])
    make_rule("everybody", quota=9)
    assert uses_up(client)
    assert reset(rule="one", ip="127.0.0.1") == ["one"]
    assert status(client) == 429
    assert reset(ip="127.0.0.1") == ["one", "two"]
    assert status(client) == 200


def test_limits_of_all_tiers_are_reset(client: Client, make_rule: MakeRule, reset: Reset) -> None:
    free = Tier.objects.create(slug="free", name="Free", rank=1, default_for="anonymous")
    rule = make_rule("r", quota=1, tier=free, partition_by=["ip"])
    rule.limits.create(quota=9, window_seconds=60, algorithm="token_bucket")
    assert uses_up(client)
    assert reset(ip="127.0.0.1") == ["r"]
    assert status(client) == 200


def test_counters_under_a_later_version_of_the_rules(
    client: Client, make_rule: MakeRule, reset: Reset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has changed the names of the counters, as by resetting all of a rule."""
    make_rule("r", quota=1, partition_by=["ip"])
    assert status(client) == 200
    earlier = cache.current_rules()
    update(RuleLimit, generation=7)
    assert uses_up(client)
    monkeypatch.setattr("django_ratelimiter.rules.cache._state.rules", earlier)
    assert reset(ip="127.0.0.1") == ["r"]
    assert status(client) == 200


@pytest.mark.parametrize(
    ("key", "given"), [("ip", {"ip": "127.0.0.1"}), ("user", {"user": 7}), ("user_or_ip", {"user": 7})]
)
def test_a_rate_in_code(reset: Reset, key: str, given: dict[str, Any]) -> None:
    request = request_of(User(pk=7))

    def ask() -> bool:
        return is_ratelimited(request, group="g", key=key, rate="1/h", increment=True)

    assert [ask(), ask()] == [False, True]
    [slug] = reset(**given)
    assert slug.startswith("code:g.")
    assert not ask()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "name the caller"),
        ({"user": AnonymousUser()}, "user must be the value of a caller"),
        ({"user": User()}, "user must be the value of a caller"),
        ({"ip": "nowhere"}, "ip must be the value of a caller, not 'nowhere'"),
        ({"ip": "192.0.2.7", "colour of hair": "red"}, "not split by 'colour of hair'"),
        ({"username": "ann"}, "not split by 'username'"),
        ({"ip": "192.0.2.7", "rule": "nothing"}, "there is no rule 'nothing'"),
        ({"ip": "192.0.2.7", "rule": "everybody"}, "all callers share"),
        ({"ip": "192.0.2.7", "rule": "by-name"}, "'by-name' is split by field:username"),
    ],
)
def test_what_names_no_counter_is_an_error(make_rule: MakeRule, reset: Reset, given: Any, says: str) -> None:
    make_rule("everybody")
    make_rule("by-name", partition_by=["field:username"])
    with pytest.raises(ValueError, match=says):
        reset(**given)
