"""The overview's search field: which page a text leads to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import Rule, Tier, TierAssignment
from django_ratelimiter.rules import tiers

from ..pages import page_of, permit, shown

pytestmark = pytest.mark.django_db

SEARCH = reverse("admin:django_ratelimiter_search")
KEY = "sk-live-0123456789abcdef"


@pytest.fixture
def leads_to(admin_client: Client, rule: Rule) -> Callable[[str], tuple[str, dict[str, str]]]:
    """The page that a text leads to, and its query."""

    def search(text: str) -> tuple[str, dict[str, str]]:
        response = admin_client.post(SEARCH, {"q": text})
        assert response.status_code == 302, shown(response)
        parts = urlsplit(response["Location"])
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return re.sub(r".*(?=(caller|explain)/$)", "", parts.path.removeprefix("/admin/")), query

    return search


def test_each_kind_leads_to_its_page(leads_to: Callable[[str], Any], rule: Rule) -> None:
    ann = User.objects.create_user("ann", "Ann@example.com", id=4711)
    TierAssignment.objects.create(tier=Tier.objects.get(), api_key_hash=hash_api_key(KEY))
    tiers.forget()
    user = ("caller/", {"kind": "user", "value": f"id:{ann.pk}"})
    key = ("caller/", {"kind": "api_key", "value": hash_api_key(KEY)})
    form = (f"django_ratelimiter/rule/{rule.pk}/change/", {})
    for text, page in {
        "ann": user,
        " ann@EXAMPLE.com ": user,
        "4711": user,
        "user:ann": user,
        "partition:user:shop.Device:4711": ("caller/", {"kind": "partition", "value": "user:shop.Device:4711"}),
        KEY: key,
        f"api_key:{KEY}": key,
        "192.0.2.7": ("caller/", {"kind": "ip", "value": "192.0.2.7"}),
        "2001:DB8::1": ("caller/", {"kind": "ip", "value": "2001:db8::1"}),
        "partition:header:X-Org:acme": ("caller/", {"kind": "partition", "value": "header:X-Org:acme"}),
        "A-b_4" * 4 + "22": ("caller/", {"digest": "A-b_4" * 4 + "22"}),
        "export": form,
        "Export": form,
        "xpor": form,
        "rule:export": form,
        "/api/export/7": ("explain/", {"method": "GET", "path": "/api/export/7"}),
        "post /api/": ("explain/", {"method": "POST", "path": "/api/"}),
        "https://example.com/api/?q=1": ("explain/", {"method": "GET", "path": "/api/"}),
    }.items():
        assert leads_to(text) == page, text


def test_callers_are_for_who_may_see_them(operator: Callable[..., Client], rule: Rule) -> None:
    for codenames, status in ((["view_rule"], 200), (["view_rule", "unblock_caller"], 302)):
        User.objects.all().delete()
        client = operator(*codenames)
        assert client.post(SEARCH, {"q": "192.0.2.7"}).status_code == status


def test_names_of_users_are_for_who_may_see_them(operator: Callable[..., Client], rule: Rule) -> None:
    both = [User.objects.create_user("zoe.miller", id=4711), User.objects.create_user("4711")]
    client = operator("view_rule", "unblock_caller")
    for codename, is_seen in (("unblock_caller", False), ("view_user", True), ("reveal_caller", True)):
        permit("view_rule", "unblock_caller", codename)
        text = shown(client.post(SEARCH, {"q": "4711"}))
        assert ("zoe.miller" in text) == is_seen
        assert all(f"id%3A{user.pk}" in text for user in both)


@pytest.fixture
def suggested(admin_client: Client, rule: Rule) -> Callable[..., list[str]]:
    """What is suggested for a text, each with its kind."""

    def ask(text: str, client: Client = admin_client) -> list[str]:
        response = client.post(SEARCH, {"q": text, "suggest": "1"})
        assert "<html" not in shown(response)
        found = re.findall(r"<a [^>]*>(.*?)</a> <span[^>]*>(.*?)</span>", shown(response))
        return [f"{kind}: {name}" for name, kind in found]

    return ask


def test_a_part_of_a_name_or_label_is_found_and_suggested(suggested: Any, leads_to: Callable[[str], Any]) -> None:
    ann, bob = User.objects.create_user("annette.miller"), User.objects.create_user("bob")
    hashed, free = hash_api_key(KEY), Tier.objects.get()
    for given in (
        {"api_key_hash": hashed, "reason": "Warehouse scanner"},
        {"partition": "header:X-Org:acme", "reason": ""},
        {"user": bob, "reason": "Pays for Acme"},
    ):
        TierAssignment.objects.create(tier=free, **given)
    assert suggested("nette") == suggested("user:NETTE") == ["User: annette.miller"]
    assert leads_to("nette.m") == ("caller/", {"kind": "user", "value": f"id:{ann.pk}"})
    assert suggested("house sc") == [f"API key: Warehouse scanner ({hashed[:8]}…)"]
    assert leads_to("scanner") == ("caller/", {"kind": "api_key", "value": hashed})
    assert suggested("acme") == ["User: Pays for Acme (bob)", "Caller: header:X-Org:acme"]
    assert suggested("xpor") == ["Rule: Export"]
    for text in ("a", " a ", "x" * 101, "\0ann", KEY, "192.0.2.7", "user:", "session:abcdefgh"):
        assert suggested(text) == [], text


def test_the_latest_rows_alone_are_searched_for_a_part(suggested: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    User.objects.bulk_create(User(username=f"customer{number:03}") for number in range(30))
    assert [each.removeprefix("User: customer") for each in suggested("stomer")] == [
        f"{number:03}" for number in range(29, 19, -1)
    ]
    monkeypatch.setattr("django_ratelimiter.admin.overview.search.MAX_SEARCHED", 5)
    assert len(suggested("stomer")) == 5
    assert suggested("customer001") == []


def test_who_may_not_see_users_or_assignments_is_suggested_none(
    suggested: Any, operator: Callable[..., Client], django_assert_max_num_queries: Any
) -> None:
    User.objects.create_user("annette")
    TierAssignment.objects.create(tier=Tier.objects.get(), api_key_hash=hash_api_key(KEY), reason="annex")
    client = operator("unblock_caller")
    for codename, found in (
        ("unblock_caller", []),
        ("view_user", ["User: annette"]),
        ("reveal_caller", []),
        ("view_tierassignment", [f"API key: annex ({hash_api_key(KEY)[:8]}…)"]),
    ):
        permit("unblock_caller", codename)
        with django_assert_max_num_queries(10):
            assert suggested("anne", client) == found, codename
    assert "annette" not in shown(client.post(SEARCH, {"q": "annet"}))
    permit()
    assert client.post(SEARCH, {"q": "ann", "suggest": "1"}).status_code == 403


def test_no_session_key_stands_in_an_address(leads_to: Callable[[str], Any]) -> None:
    assert set(leads_to("partition:session:abcdefgh")[1]) == {"digest"}
    assert leads_to("partition:nonsense:")[1]["kind"] == "partition"


def test_several_are_listed(admin_client: Client, rule: Rule) -> None:
    User.objects.create_user("export")
    page = shown(admin_client.post(SEARCH, {"q": "export"}))
    assert re.findall(">([^<]*)</a> <span", page) == ["Export", "export"]
    assert "At most" not in page


@pytest.mark.parametrize(
    "text", ["", "zz-secret", "a\0b", "x" * 600, "ip:nonsense", "http://[", "rule:", "99999999999999999999999"]
)
def test_what_is_known_by_nothing_is_not_repeated(admin_client: Client, rule: Rule, text: str) -> None:
    response = admin_client.post(SEARCH, {"q": text})
    assert response.status_code == 200
    assert ("Nothing matches this." in shown(response)) is bool(text)
    assert "zz-secret" not in shown(response)


def test_a_page_that_the_site_lacks_is_no_error(
    admin_client: Client, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.urls import NoReverseMatch

    from django_ratelimiter.admin import viewer

    def without(name: str, **given: Any) -> str:
        if name.endswith(("caller", "explain")):
            raise NoReverseMatch
        return reverse(name, **given)

    monkeypatch.setattr(viewer, "reverse", without)
    assert "Nothing matches" in shown(admin_client.post(SEARCH, {"q": "192.0.2.7"}))
    assert admin_client.post(SEARCH, {"q": "export"})["Location"] == page_of(rule)
