"""The page of one API key of an owner with several, as API_KEY_RESOLVER knows them, and of the owner."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.inspection.caller import SIGNED_SECONDS
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from tests.making import make_rule

from ..pages import shown
from .page import CALLER, press

pytestmark = pytest.mark.django_db
HASH = hash_api_key("acme-1")


def account_of(raw: str) -> User | None:
    """Users stand for accounts, and their first names are the plans; a key is NAME-NUMBER."""
    assert raw != "broken"
    return User.objects.filter(username=raw.partition("-")[0]).first()


@pytest.fixture(autouse=True)
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
        assert f"API key the shop ({HASH[:8]}…) of auth.User:" in page
        assert "Pro, by RATELIMITER['TIER_RESOLVER']; months begin on: day 15, by an assignment" in page
        assert "1 of 3" in page  # of the owner
    for address in (owner, found(admin_client, "acme-2")):
        assert "leaked" not in shown(admin_client.get(address))
    caller = admin_client.get(owner).context["caller"]
    assert admin_client.get(owner).context["title"] == f"API key {caller.value}"
    by_digest = admin_client.get(CALLER, {"digest": caller.digest}).context["caller"]
    assert not by_digest.is_one_key  # a report counts by owner, whatever key was looked up
    address = admin_client.get(CALLER, {"kind": "ip", "value": "192.0.2.7", "is:api_key": "acme-1"})["Location"]
    assert "acme-1" not in address
    assert admin_client.get(address).context["caller"].api_key == HASH


@pytest.mark.parametrize("act", ["more", "deny", "allow"])
def test_acts_are_for_the_key_or_for_all_keys_of_the_owner(admin_client: Client, owner: str, act: str) -> None:
    key, other = found(admin_client, "acme-1"), admin_client.get(found(admin_client, "acme-2"))
    assert "For all API keys of this owner." in press(admin_client, owner, act, multiplier="2")
    assert "No access entry of this caller" in press(admin_client, key, "end-access")
    assert "made for somebody else" in press(admin_client, key, act, token=other.context["token"])
    assert f"For the API key {HASH[:8]}… alone." in press(admin_client, key, act, multiplier="2")
    model, field = (TierAssignment, "api_key_hash") if act == "more" else (AccessEntry, "value")
    assert [value == HASH for value in model.objects.order_by("pk").values_list(field, flat=True)] == [
        False,
        True,
    ]


def test_a_key_that_is_no_identity_has_no_page(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    old, later = found(admin_client, "acme-1"), time.time() + SIGNED_SECONDS + 2
    monkeypatch.setattr("time.time", lambda: later)
    assert "more than an hour old" in shown(admin_client.get(old))
    for text, says in (
        ("revoked-1", "This key is not known: API_KEY_RESOLVER returned None. So it does not count as an identity."),
        ("broken", "Whether this key is known cannot be found out"),
        (HASH, "This is the hash of a key, and API_KEY_RESOLVER takes the key itself"),
        ("value:auth.User:999999", "There is no auth.User:999999 in the database"),
        ("key:forged-1", "This key is not known"),
    ):
        assert says in shown(admin_client.post(CALLER, {"kind": "api_key", "value": text}))
        assert says in shown(admin_client.get(CALLER, {"kind": "api_key", "value": text}))
        with pytest.raises(CommandError, match=says[:40]):
            call_command("ratelimit", "caller", "--api-key", text)
