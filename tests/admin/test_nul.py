"""A NUL byte in a parameter: PostgreSQL takes none in a text, so it must never come that far. SQLite takes no 9…9."""

from __future__ import annotations

from itertools import product
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule, Tier

from .pages import ADD_RULE, RULES, page_of, rule_form

pytestmark = pytest.mark.django_db

TIERS, ASSIGNMENTS, ENTRIES, USAGE = (
    reverse(f"admin:django_ratelimiter_{model}_changelist")
    for model in ("tier", "tierassignment", "accessentry", "usagebucket")
)
TEXTS = ["\0", "a\0b"]

LISTS = {
    RULES: "q mode__exact mode path_kind__exact limits__tier__id__exact limits__tier slug name o p e",
    TIERS: "q slug name__startswith default_for rank o",
    ASSIGNMENTS: "q tier__id__exact tier user when reason partition api_key_hash user__username o",
    ENTRIES: "q action__exact kind__exact when value reason o",
    **dict.fromkeys(
        (f"{USAGE}{page}?rule=export" for page in ("", "rule/", "totals.csv", "series.csv", "top.csv")),
        "period since until rule tier by caller nonsense",
    ),
}


@pytest.mark.parametrize("page", LISTS)
def test_lists_and_reports(admin_client: Client, rule: Rule, page: str) -> None:
    for name, text in product(LISTS[page].split(), ["a\0b", "9" * 30]):
        url = f"{page}{'&' if '?' in page else '?'}{urlencode({name: text})}"
        assert admin_client.get(url, follow=True).status_code in (200, 400, 404), url


@pytest.mark.parametrize("text", TEXTS)
def test_addresses(admin_client: Client, rule: Rule, text: str) -> None:
    sentences = reverse("admin:django_ratelimiter_rule_sentences")
    enforcement = reverse("admin:django_ratelimiter_enforcement")
    fields = ("timezone", "calendar", "algorithm", "quota", "window_seconds", "tier", "partition_by", "charge_when")
    for name in fields:
        typed = {"algorithm": "fixed_window", "calendar": "day", "quota": "1", "cost": "1", name: text}
        assert admin_client.get(sentences, typed).status_code == 200, name
    assert admin_client.post(enforcement, {"enforcement": text}).status_code == 400
    for page in (f"{RULES}{text}/change/", f"{RULES}{text}/delete/", f"{RULES}{text}/history/"):
        assert admin_client.get(page, follow=True).status_code in (200, 404), page
    for name in ("name", "slug", "mode", "_to_field", "_popup", "_changelist_filters"):
        assert admin_client.get(ADD_RULE, {name: text}).status_code in (200, 400), name


SENT: dict[str, Any] = rule_form({"quota": "5", "window_seconds": "60"})


@pytest.mark.parametrize(("page", "text"), [*zip(("add", "change"), TEXTS, strict=True)])
def test_forms(admin_client: Client, rule: Rule, page: str, text: str) -> None:
    address = ADD_RULE if page == "add" else page_of(rule)
    for name in (*(name for name in SENT if "FORMS" not in name), "partition_by_others"):
        typed = f"header:{text}" if name == "partition_by_others" else text
        assert admin_client.post(address, {**SENT, "slug": "new", name: typed}).status_code == 200, name


@pytest.mark.parametrize("text", TEXTS)
def test_access_entries_and_assignments(admin_client: Client, free: Tier, text: str) -> None:
    entry = {"action": "deny", "ip": "192.0.2.1", "expires_at_0": "", "expires_at_1": "", "reason": ""}
    for name in ("ip", "user", "api_key", "reason", "expires_at_0", "action"):
        assert admin_client.post(f"{ENTRIES}add/", {**entry, name: text}).status_code == 200, name
    assignment = {"tier": free.pk, "multiplier": "1"}
    for name in ("group", "api_key", "partition", "reason", "tier", "multiplier", "starts_at_0"):
        typed = f"ip:{text}" if name == "partition" else text
        assert admin_client.post(f"{ASSIGNMENTS}add/", {**assignment, name: typed}).status_code == 200, name
