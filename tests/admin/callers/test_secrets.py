"""Keys of sessions and APIs stay out of addresses, kept nowhere; the page of one key of an owner with several."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from tests.making import make_rule

from ..pages import shown
from .page import CALLER, ask, press, save

pytestmark = pytest.mark.django_db


def test_lookups_keep_secrets_out_of_addresses(admin_client: Client, page: str) -> None:
    response = admin_client.post(CALLER, {"kind": "api_key", "value": "s3cret"})
    assert parse_qs(urlsplit(response["Location"]).query) == {"kind": ["api_key"], "value": [hash_api_key("s3cret")]}
    assert "API key" in shown(admin_client.get(response["Location"]))
    key = Session.objects.get().session_key
    response = admin_client.post(CALLER, {"kind": "partition", "value": f"session={key}"})
    assert key not in response["Location"]
    assert "3 of 3" not in shown(admin_client.get(response["Location"]))
    for kind, value in (("api_key", "s3cret"), ("partition", f"session={key}")):
        opened = admin_client.get(CALLER, {"kind": kind, "value": value})["Location"]
        assert value.removeprefix("session=") not in opened


def no_account(raw: str) -> str | None:
    """An API_KEY_RESOLVER that knows one key, and returns another as it is."""
    return {"s3cret": "account-7", "plain-key": "plain-key"}.get(raw)


def test_no_key_is_in_an_address_or_kept_where_a_resolver_knows_keys(
    admin_client: Client, page: str, settings: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_RESOLVER": "tests.admin.callers.test_secrets.no_account"}
    for kind, value, named in (
        ("api_key", "s3cret", {"kind": ["api_key"]}),
        ("api_key", "value:account-7", {"kind": ["api_key"], "value": ["value:account-7"]}),
        ("api_key", "plain-key", {"kind": ["api_key"]}),
        ("partition", "session:abcdefgh", None),
        ("partition", "api_key:s3cret|ip:192.0.2.7", None),
        ("partition", "api_key:value:account-7", {"kind": ["partition"], "value": ["api_key:value:account-7"]}),
    ):
        response = admin_client.post(CALLER, {"kind": kind, "value": value})
        query = parse_qs(urlsplit(response["Location"]).query)
        if value in ("s3cret", "plain-key"):  # its hash, and what it counts as
            assert query.pop("value")[0].startswith(f"key:{hash_api_key(value)}:")
            assert "s3cret" not in response["Location"]
        assert query == named if named else set(query) == {"digest"}
        assert admin_client.get(response["Location"]).status_code == 200
        if "kind=api_key" in response["Location"]:
            found = hash_api_key(value) if value == "plain-key" else "account-7"
            assert admin_client.get(response["Location"]).context["caller"].known == {"api_key": found}
        kept = str(dict(admin_client.session))
        for secret in ("s3cret", "plain-key", "abcdefgh"):
            assert secret not in kept
        if named is None:
            assert set(
                parse_qs(urlsplit(admin_client.get(CALLER, {"kind": kind, "value": value})["Location"]).query)
            ) == {"digest"}
    found = admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": "s3cret"})["Location"]
    assert admin_client.get(found).context["caller"].known == {"api_key": "account-7"}
    assert "rejects every request" in save(admin_client, found, "deny")
    of_all = shown(admin_client.get(CALLER, {"kind": "api_key", "value": "value:account-7"}))
    assert ("API key account-7" in of_all, "rejects every request" in of_all) == (True, False)
    asked = {"path": "/", "api_key": hash_api_key("s3cret")}
    assert "takes the key itself" in shown(admin_client.get(reverse("admin:django_ratelimiter_explain"), asked))
    for text, says in (("gone", "This key is not known"), (hash_api_key("s3cret"), "takes the key itself")):
        assert says in shown(admin_client.post(CALLER, {"kind": "api_key", "value": text}))


def test_what_else_is_known_is_sent_in_the_body_and_secrets_stay_out_of_addresses(
    admin_client: Client, page: str, ann: User
) -> None:
    for slug, names in (("org", ["header:X-Org"]), ("device", ["session"]), ("key", ["api_key"])):
        make_rule(slug, 7, partition_by=["user", *names])
    press(admin_client, page)
    ask(ann, HTTP_X_ORG="acme")
    assert '<form method="post" class="ratelimiter-fields"' in shown(admin_client.get(page))
    response = admin_client.post(
        page, {"know": "1", "is:header:X-Org": "acme", "is:session": "", "is:api_key": "s3cret"}
    )
    assert response.status_code == 302
    query = parse_qs(urlsplit(response["Location"]).query)
    assert query["is:api_key"] == [hash_api_key("s3cret")]
    assert "is:session" not in query
    assert "1 of 7" in shown(admin_client.get(response["Location"]))
    shown_at_once = admin_client.post(page, {"know": "1", "is:session": "abcdefgh"})
    assert shown_at_once.status_code == 200
    assert [row["counter"].rule.slug for row in shown_at_once.context["counters"]].count("device") == 1
    assert "abcdefgh" not in shown(shown_at_once)
    assert "What to do" not in shown(shown_at_once)
    assert admin_client.get(f"{page}&is:session=abcdefgh")["Location"] == page
    assert "s3cret" not in admin_client.get(f"{page}&is:api_key=s3cret")["Location"]
    assert "Say who" not in shown(admin_client.get(f"{page}&is=nonsense"))


@pytest.mark.parametrize(
    "name", ["header:Authorization", "header:cookie", "header:x_shop_key", "header:X-SHOP-KEY", "cookie:cart"]
)
def test_header_fields_with_credentials_are_secrets(
    admin_client: Client, page: str, ann: User, settings: Any, name: str
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "API_KEY_HEADER": "X-Shop-Key"}
    make_rule("own", 7, partition_by=["user", name])
    for answer in (
        admin_client.post(CALLER, {"kind": "partition", "value": f"{name}=s3cret"}),
        admin_client.get(CALLER, {"kind": "partition", "value": f"{name}=s3cret"}),
        admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": f"partition:{name}=s3cret"}),
    ):
        assert set(parse_qs(urlsplit(answer["Location"]).query)) == {"digest"}
        assert admin_client.get(answer["Location"]).status_code == 200
    known = admin_client.post(page, {"know": "1", f"is:{name}": "s3cret"})
    assert [row["counter"].rule.slug for row in known.context["counters"]].count("own") == 1
    assert "s3cret" not in shown(known)
    assert "s3cret" not in str(dict(admin_client.session))
    explained = {"path": "/", "method": "GET", "identities": f"user={ann.pk}\n{name}=s3cret"}
    answer = admin_client.post(reverse("admin:django_ratelimiter_explain"), explained)
    assert (name.replace(":", " "), "…") in [(str(label), value) for label, value in answer.context["counted_as"]]


@pytest.mark.parametrize("name", ["session", "cookie:cart", "header:Authorization", "header:X-API-Key"])
def test_no_tier_is_assigned_by_a_secret(name: str) -> None:
    assignment = TierAssignment(tier=Tier.objects.create(slug="gold", name="Gold"), partition=f"{name}:s3cret")
    with pytest.raises(ValidationError, match="stored as text"):
        assignment.full_clean()


HASH = hash_api_key("acme-1")


def account_of(raw: str) -> User | None:
    """Users stand for accounts, and their first names are the plans; a key is NAME-NUMBER."""
    assert raw != "broken"
    return User.objects.filter(username=raw.partition("-")[0]).first()


@pytest.fixture
def owner(settings: Any) -> str:
    """The address of the owner's page."""
    own = {"API_KEY_RESOLVER": f"{__name__}.account_of", "TIER_RESOLVER": "api_key.first_name"}
    settings.RATELIMITER = {**settings.RATELIMITER, **own}
    Tier.objects.create(slug="pro", name="Pro")
    make_rule("api", 3, partition_by=["api_key"], missing_partition="deny")
    return (
        f"{CALLER}?kind=api_key&value=value%3Aauth.User%3A{User.objects.create(username='acme', first_name='pro').pk}"
    )


def found(client: Client, text: str) -> str:
    address = str(client.post(CALLER, {"kind": "api_key", "value": text})["Location"])
    assert text not in address
    return address


def test_the_page_of_a_key_is_about_this_key(admin_client: Client, owner: str) -> None:
    AccessEntry.objects.create(action="deny", kind="api_key", value=HASH, reason="leaked")
    TierAssignment.objects.create(anchor_day=15, api_key_hash=HASH, reason="the shop")
    limiter.check(RequestFactory().get("/", HTTP_X_API_KEY="acme-2"))
    by_search = admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": "acme-1"})["Location"]
    for address in (found(admin_client, "acme-1"), by_search):
        page = shown(admin_client.get(address))
        assert "An access entry rejects every request of this caller." in page
        assert f"API key the shop ({HASH[:8]}…) of acme" in page
        assert "Pro, by RATELIMITER['TIER_RESOLVER']; months begin on: day 15, by an assignment" in page
        assert "1 of 3" in page  # of the owner
    for address in (owner, found(admin_client, "acme-2")):
        assert "leaked" not in shown(admin_client.get(address))
    caller = admin_client.get(owner).context["caller"]
    assert admin_client.get(owner).context["title"] == "API key acme"
    by_digest = admin_client.get(CALLER, {"digest": caller.digest}).context["caller"]
    assert not by_digest.is_one_key  # a report counts by owner, whatever key was looked up
    address = admin_client.get(CALLER, {"kind": "ip", "value": "192.0.2.7", "is:api_key": "acme-1"})["Location"]
    assert "acme-1" not in address
    assert admin_client.get(address).context["caller"].api_key == HASH


@pytest.mark.parametrize("act", ["more", "deny", "allow"])
def test_acts_are_for_the_key_or_for_all_keys_of_the_owner(admin_client: Client, owner: str, act: str) -> None:
    key = found(admin_client, "acme-1")
    assert "These are for all keys of" in save(admin_client, owner, act)
    assert "for this key alone" in save(admin_client, key, act)
    model, field = (TierAssignment, "api_key_hash") if act == "more" else (AccessEntry, "value")
    assert [value == HASH for value in model.objects.order_by("pk").values_list(field, flat=True)] == [False, True]


@pytest.mark.usefixtures("owner")
def test_a_key_that_is_no_identity_has_no_page(admin_client: Client) -> None:
    for text, says in (
        ("revoked-1", "This key is not known: API_KEY_RESOLVER returned None. So it does not count as an identity."),
        ("broken", "Whether this key is known cannot be found out"),
        (HASH, "This is the hash of a key, and API_KEY_RESOLVER takes the key itself"),
        ("key:forged-1", "This key is not known"),
    ):
        assert says in shown(admin_client.post(CALLER, {"kind": "api_key", "value": text}))
        assert says in shown(admin_client.get(CALLER, {"kind": "api_key", "value": text}))
        with pytest.raises(CommandError, match=says[:40]):
            call_command("ratelimit", "caller", "--api-key", text)
