"""Assignments to tiers, and access entries that deny or allow callers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.admin.callers import forms
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from django_ratelimiter.rules import cache

from ..pages import ADD_ASSIGNMENT, page_of, shown

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


class TestAssignments:
    def test_an_api_key_is_hashed_and_never_shown(self, admin_client: Client, free: Tier) -> None:
        raw = "secret-key-of-a-customer"
        response = admin_client.post(ADD_ASSIGNMENT, {"tier": free.pk, "api_key": raw, "reason": "asked"})
        assert response.status_code == 302
        assignment = TierAssignment.objects.get()
        assert assignment.api_key_hash == hash_api_key(raw)
        assert assignment.created_by == User.objects.get(username="admin")
        for address in (page_of(assignment), reverse("admin:django_ratelimiter_tierassignment_changelist")):
            page = shown(admin_client.get(address))
            assert raw not in page
            assert hash_api_key(raw) not in page
            assert f"API key {hash_api_key(raw)[:8]}…" in page
        assert raw not in str(list(LogEntry.objects.values_list("object_repr", "change_message")))

    def test_without_a_tier_gives_a_multiplier_or_a_first_day(self, admin_client: Client, free: Tier) -> None:
        user = User.objects.create(username="ada").pk
        sent: dict[str, object] = {"tier": "", "user": user}
        assert "Choose a tier, or enter a multiplier" in shown(admin_client.post(ADD_ASSIGNMENT, sent))
        for more in ({"multiplier": "2"}, {"anchor_day": "15"}):
            assert admin_client.post(ADD_ASSIGNMENT, sent | more).status_code == 302
        found = TierAssignment.objects.values_list("tier", "multiplier", "anchor_day")
        assert sorted(found, key=str) == [(None, 1, 15), (None, 2, None)]

    @pytest.mark.skipif("connection.vendor != 'sqlite'", reason="the plan is in SQLite's words")
    def test_list_begins_with_the_latest_without_sorting_all(self, admin_client: Client, free: Tier) -> None:
        for name in ("ann", "bob"):
            TierAssignment.objects.create(tier=free, user=User.objects.create(username=name))
        with CaptureQueriesContext(connection) as queries:
            page = admin_client.get(reverse("admin:django_ratelimiter_tierassignment_changelist"))
        assert shown(page).index("bob") < shown(page).index("ann")
        [sql] = [each["sql"] for each in queries if "tierassignment" in each["sql"] and "ORDER BY" in each["sql"]]
        with connection.cursor() as cursor:
            assert "ORDER BY" not in str(cursor.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())

    def test_a_key_is_assigned_once(self, admin_client: Client, free: Tier) -> None:
        sent = {"tier": free.pk, "api_key": "key"}
        assert admin_client.post(ADD_ASSIGNMENT, sent).status_code == 302
        response = admin_client.post(ADD_ASSIGNMENT, sent)
        assert "in this tier already" in shown(response)

    def test_form_names_the_partition_if_users_are_in_another_database(
        self, admin_client: Client, free: Tier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(forms, "is_beside_users", lambda model: False)
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        page = shown(admin_client.post(ADD_ASSIGNMENT, {"tier": free.pk, "user": user.pk}))
        assert f"Users are in another database. Enter the partition user:{user.pk} instead." in page
        assert "Choose exactly one" not in page.partition("errorlist")[2]
        page = shown(admin_client.post(ADD_ASSIGNMENT, {"tier": free.pk, "group": group.pk}))
        assert "Groups are in another database." in page
        assert not TierAssignment.objects.exists()
        partition = {"tier": free.pk, "partition": f"user:{user.pk}"}
        assert admin_client.post(ADD_ASSIGNMENT, partition).status_code == 302

    def test_pages_show_rows_of_users_that_were_deleted_by_sql(self, admin_client: Client, free: Tier) -> None:
        user, group = User.objects.create(username="ada"), Group.objects.create(name="staff")
        with cache.editing(author=user, summary="by ada"):
            Tier.objects.create(slug="pro", name="Pro")
        rows = [
            TierAssignment.objects.create(tier=free, created_by=user, **subject)
            for subject in ({"user": user}, {"group": group})
        ]
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM auth_user WHERE id = %s", [user.pk])
            cursor.execute("DELETE FROM auth_group WHERE id = %s", [group.pk])
        found = [TierAssignment.objects.get(pk=row.pk) for row in rows]
        assert [each.subject for each in found] == [f"user {user.pk}", f"group {group.pk}"]
        assert [each.natural_key()[:3] for each in found] == [("free", None, None)] * 2
        deletion = reverse("admin:django_ratelimiter_tier_delete", args=[free.pk])
        lists = [reverse(f"admin:django_ratelimiter_{name}") for name in ("tierassignment_changelist", "history")]
        pages = (*map(page_of, rows), *lists, deletion, reverse("admin:app_list", args=["django_ratelimiter"]))
        assert [admin_client.get(page).status_code for page in pages] == [200] * len(pages)

    def test_deleted_user_or_group_takes_its_rows_along(self, free: Tier) -> None:
        ada, bob, crew = *map(User.objects.create_user, ("ada", "bob")), Group.objects.create(name="crew")
        TierAssignment.objects.create(tier=free, user=ada, created_by=bob)
        TierAssignment.objects.create(tier=free, partition=f"user:{ada.pk}|ip:192.0.2.7")
        AccessEntry.objects.create(kind="user", value=str(ada.pk), action="deny")
        kept = TierAssignment.objects.create(tier=free, group=crew, created_by=ada)
        ada.delete()
        kept.refresh_from_db()
        assert kept.created_by is None
        assert [*TierAssignment.objects.all()] == [kept]
        assert not AccessEntry.objects.exists()
        crew.delete()
        assert not TierAssignment.objects.exists()

    def test_the_subject_stays(self, admin_client: Client, free: Tier) -> None:
        assignment = TierAssignment.objects.create(tier=free, api_key_hash=hash_api_key("key"))
        pro = Tier.objects.create(slug="pro", name="Pro")
        sent = {"tier": pro.pk, "reason": "pays now", "api_key": "another", "api_key_hash": "0" * 64, "user": 1}
        assert admin_client.post(page_of(assignment), sent).status_code == 302
        assignment.refresh_from_db()
        assert (assignment.tier, assignment.user, assignment.api_key_hash) == (pro, None, hash_api_key("key"))

    def test_is_found_by_user(self, admin_client: Client, free: Tier) -> None:
        address = reverse("admin:django_ratelimiter_tierassignment_changelist")
        for name in ("ada", "eve"):
            TierAssignment.objects.create(tier=free, user=User.objects.create(username=name))
        assert "user eve" in shown(admin_client.get(address))
        found = admin_client.get(f"{address}?q=ada").context["cl"].result_list
        assert [assignment.user.username for assignment in found] == ["ada"]

    def test_a_user_is_searched_for_where_that_is_possible(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "admin-autocomplete" in shown(admin_client.get(ADD_ASSIGNMENT))
        from django.contrib.admin import site

        monkeypatch.delitem(site._registry, User)
        page = shown(admin_client.get(ADD_ASSIGNMENT))
        assert "admin-autocomplete" not in page
        assert 'name="user"' in page


class TestDatedAssignments:
    def test_a_multiplier_for_a_time_is_saved_and_shown(self, admin_client: Client, free: Tier) -> None:
        user = User.objects.create(username="ada")
        TierAssignment.objects.create(tier=free, user=user)
        sent = {
            "tier": free.pk,
            "user": user.pk,
            "multiplier": "2",
            "ends_at_0": "2999-11-27",
            "ends_at_1": "12:00:00",
            "starts_at_0": "",
            "starts_at_1": "",
        }
        assert admin_client.post(ADD_ASSIGNMENT, sent).status_code == 302
        dated = TierAssignment.objects.get(ends_at__year=2999)
        assert (dated.multiplier, dated.starts_at) == (2, None)
        page = shown(admin_client.get(reverse("admin:django_ratelimiter_tierassignment_changelist")))
        assert "until Nov. 27, 2999, noon" in page
        page = shown(admin_client.get(page_of(dated)))
        assert 'name="multiplier" value="2"' in page
        assert admin_client.post(page_of(dated), sent | {"multiplier": "0.5"}).status_code == 302
        dated.refresh_from_db()
        assert (dated.multiplier, dated.user) == (Decimal("0.5"), user)

    def test_a_date_alone_is_the_whole_day(self, admin_client: Client, free: Tier, settings: Any) -> None:
        settings.TIME_ZONE = "Asia/Tokyo"
        sent = {"tier": free.pk, "api_key": "key", "starts_at_0": "2030-01-02", "ends_at_0": "2030-01-02"}
        assert admin_client.post(ADD_ASSIGNMENT, {**sent, "multiplier": "2"}).status_code == 302
        dated = TierAssignment.objects.get()
        assert [f"{each:%d %H}" for each in (dated.starts_at, dated.ends_at) if each] == ["01 15", "02 15"]
        address = reverse("admin:django_ratelimiter_accessentry_add")
        assert "A date without a time counts as the whole day, in this time zone: Asia/Tokyo." in shown(
            admin_client.get(address)
        )
        entry = {"action": "deny", "ip": "192.0.2.1", "expires_at_0": "2030-01-02", "expires_at_1": ""}
        assert admin_client.post(address, entry).status_code == 302
        assert AccessEntry.objects.get().expires_at == dated.ends_at
        assert "Enter a valid date." in shown(admin_client.post(address, entry | {"expires_at_0": "9999-12-31"}))
        assert "Enter a valid date." in shown(
            admin_client.post(address, entry | {"expires_at_0": "", "expires_at_1": "9:00"})
        )

    @pytest.mark.parametrize(
        ("sent", "says"),
        [
            ({"multiplier": "much"}, "Enter a number."),
            ({"starts_at_0": "2030-01-02", "ends_at_0": "2030-01-01"}, "“until” must be later than “from”."),
            ({"api_key": "", "partition": "acme"}, "Enter a kind of value and the value"),
            ({"partition": "ip:192.0.2.7"}, "Choose exactly one of user, group, API key and partition."),
            ({"api_key": "schlüssel"}, "only contain ASCII characters"),
        ],
    )
    def test_what_cannot_be_granted_is_rejected(
        self, admin_client: Client, free: Tier, sent: dict[str, str], says: str
    ) -> None:
        times = {"starts_at_1": "00:00", "ends_at_1": "00:00"} if "ends_at_0" in sent else {}
        page = shown(admin_client.post(ADD_ASSIGNMENT, {"tier": free.pk, "api_key": "typed-key"} | sent | times))
        assert says in page
        assert "typed-key" not in page
        assert not TierAssignment.objects.exists()

    def test_list_says_when_each_applies(self, admin_client: Client, free: Tier) -> None:
        now = timezone.now()
        for name, dates in {
            "always": {},
            "until": {"ends_at": now + DAY},
            "over": {"ends_at": now - DAY},
            "since": {"starts_at": now - DAY},
            "later": {"starts_at": now + DAY},
        }.items():
            TierAssignment.objects.create(tier=free, partition=f"user:{name}", **dates)
        page = shown(admin_client.get(reverse("admin:django_ratelimiter_tierassignment_changelist")))
        assert all(words in page for words in ("over since", "since", "from", "until"))


def test_a_tier_with_assignments_needs_the_right_to_delete_them_and_another_does_not(
    operator: Callable[..., Client], free: Tier
) -> None:
    assignment = TierAssignment.objects.create(tier=free, api_key_hash="0" * 64)
    client = operator("view_tier", "delete_tier")
    assert "doesn't have permission to delete" in shown(client.get(page_of(free, "delete")))
    assert client.post(page_of(free, "delete"), {"post": "yes"}).status_code == 403
    assert TierAssignment.objects.get() == assignment
    assignment.delete()
    assert client.post(page_of(free, "delete"), {"post": "yes"}).status_code == 302


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
            ({}, "Fill in exactly one of these fields."),
            ({"ip": "192.0.2.7", "api_key": "typed-key"}, "Fill in exactly one of these fields."),
            ({"user": "nobody"}, "There is no user with this name."),
            ({"api_key": "schlüssel"}, "only contain ASCII characters"),
        ],
    )
    def test_says_what_is_wrong(self, admin_client: Client, sent: dict[str, str], says: str) -> None:
        page = shown(admin_client.post(ADD, {"action": "deny"} | sent))
        assert page.count(says) == 1
        assert "typed-key" not in page
        assert not AccessEntry.objects.exists()

    @pytest.mark.parametrize("ip", ["0.0.0.0/0", " 192.0.2.7/0", "::/0", "::ffff:0:0/96"])
    @pytest.mark.parametrize("action", ["deny", "allow"])
    def test_asks_before_an_entry_for_every_address(self, admin_client: Client, action: str, ip: str) -> None:
        sent = {"action": action, "ip": ip, "reason": "flood"}
        asked = shown(admin_client.post(ADD, sent))
        assert "It would deny every request of every address" in asked
        assert "Tick this box" in asked
        assert not AccessEntry.objects.exists()
        assert admin_client.post(ADD, sent | {"confirm_everybody": "on"}).status_code == 302
        entry = AccessEntry.objects.get()
        other = {"action": "allow" if action == "deny" else "deny", "reason": "other"}
        assert "Tick this box" in shown(admin_client.post(page_of(entry), other))
        assert admin_client.post(page_of(entry), {"action": action, "reason": "other"}).status_code == 302

    def test_whom_it_is_about_stays(self, admin_client: Client) -> None:
        entry = AccessEntry.objects.create(kind="ip", value="192.0.2.7")
        sent = {"action": "allow", "ip": "192.0.2.8", "kind": "user", "value": "1", "reason": "sorry"}
        assert admin_client.post(page_of(entry), sent).status_code == 302
        entry.refresh_from_db()
        assert (entry.action, entry.kind, entry.value, entry.reason) == ("allow", "ip", "192.0.2.7", "sorry")


def test_list_says_which_are_over(admin_client: Client) -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.3", expires_at=timezone.now() - timedelta(days=1))
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
