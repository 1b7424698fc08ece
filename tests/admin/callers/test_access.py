"""The admin's pages of access entries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry

from ..pages import page_of, shown

pytestmark = pytest.mark.django_db

ENTRIES = reverse("admin:django_ratelimiter_accessentry_changelist")
ADD = reverse("admin:django_ratelimiter_accessentry_add")


class TestForm:
    @pytest.mark.parametrize(
        ("sent", "kind", "value"),
        [
            ({"ip": "192.0.2.7/24"}, "ip", "192.0.2.0/24"),
            ({"user": "ada"}, "user", "{ada}"),
            ({"api_key": "leaked"}, "api_key", hash_api_key("leaked")),
        ],
    )
    def test_keeps_what_is_filled_in(self, admin_client: Client, sent: dict[str, str], kind: str, value: str) -> None:
        ada = User.objects.create(username="ada")
        response = admin_client.post(ADD, {"action": "deny", "reason": "noisy"} | sent)
        assert response.status_code == 302
        entry = AccessEntry.objects.get()
        assert (entry.action, entry.kind, entry.value) == ("deny", kind, value.format(ada=ada.pk))
        assert entry.subject in shown(admin_client.get(ENTRIES))
        assert "leaked" not in shown(admin_client.get(page_of(entry)))
        assert "leaked" not in str(list(LogEntry.objects.values_list("object_repr", "change_message")))

    @pytest.mark.parametrize(
        ("sent", "says"),
        [
            ({}, "Fill in exactly one of address, user, API key and digest."),
            ({"ip": "192.0.2.7", "api_key": "typed-key"}, "Fill in exactly one of address, user, API key and digest."),
            ({"ip": "300.0.0.1"}, "Not an address or network"),
            ({"user": "nobody"}, "There is no user with this name."),
            ({"api_key": "schlüssel"}, "only contain ASCII characters"),
        ],
    )
    def test_says_what_is_wrong(self, admin_client: Client, sent: dict[str, str], says: str) -> None:
        page = shown(admin_client.post(ADD, {"action": "deny"} | sent))
        assert page.count(says) == 1
        assert "typed-key" not in page
        assert not AccessEntry.objects.exists()

    @pytest.mark.parametrize("sent", [{"ip": "192.0.2.7"}, {"api_key": "key"}])
    def test_one_entry_for_each_caller(self, admin_client: Client, sent: dict[str, str]) -> None:
        assert admin_client.post(ADD, {"action": "deny"} | sent).status_code == 302
        assert "This caller already has an entry" in shown(admin_client.post(ADD, {"action": "allow"} | sent))

    def test_whom_it_is_about_stays(self, admin_client: Client) -> None:
        entry = AccessEntry.objects.create(kind="ip", value="192.0.2.7")
        sent = {"action": "allow", "ip": "192.0.2.8", "kind": "user", "value": "1", "reason": "sorry"}
        assert admin_client.post(page_of(entry), sent).status_code == 302
        entry.refresh_from_db()
        assert (entry.action, entry.kind, entry.value, entry.reason) == ("allow", "ip", "192.0.2.7", "sorry")


def test_lists_those_in_force_and_those_that_are_over(admin_client: Client) -> None:
    now = timezone.now()
    AccessEntry.objects.create(kind="ip", value="192.0.2.1")
    AccessEntry.objects.create(kind="ip", value="192.0.2.2", expires_at=now + timedelta(days=1))
    AccessEntry.objects.create(kind="ip", value="192.0.2.3", expires_at=now - timedelta(days=1))
    for when, values in {"now": {"192.0.2.1", "192.0.2.2"}, "over": {"192.0.2.3"}}.items():
        found = admin_client.get(f"{ENTRIES}?when={when}").context["cl"].result_list
        assert {entry.value for entry in found} == values
    assert "over since" in shown(admin_client.get(ENTRIES))


@pytest.mark.parametrize(
    ("permissions", "sees"),
    [([], False), (["reveal_caller"], True), (["change_accessentry"], True), (["delete_accessentry"], True)],
)
def test_who_sees_whom_an_entry_names(operator: Callable[..., Client], permissions: list[str], sees: bool) -> None:
    """Whoever may only view entries sees their numbers: lists show a digest beside an entry."""
    entry = AccessEntry.objects.create(kind="user", value="4711", action="deny", reason="fraud")
    AccessEntry.objects.create(kind="digest", value="ip:AAAAAAAAAAAAAAAAAAAAAA", reason="flood")
    client = operator("view_accessentry", *permissions)
    pages = [client.get(url).content.decode() for url in (ENTRIES, page_of(entry))]
    assert ["4711" in page for page in pages] == [sees, sees]
    assert all(f"#{entry.pk}" in page for page in pages) == (not sees)
    assert "AAAAAAAAAAAAAAAAAAAAAA" in pages[0]
    assert (client.get(f"{ENTRIES}?q=471").context["cl"].result_count == 1) == sees
    assert client.get(f"{ENTRIES}?q=fraud").context["cl"].result_count == 1
    assert client.get(f"{ENTRIES}?value__startswith=4").status_code == 400
    assert AccessEntry.objects.get(pk=entry.pk).value == "4711"
