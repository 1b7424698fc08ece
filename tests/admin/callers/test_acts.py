"""What a caller's page does: unblock, grant, deny, and say whether it took."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_ratelimiter.admin.callers.act_forms import days
from django_ratelimiter.backend import get_engine
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment

from ..pages import shown
from .page import ask, press

pytestmark = pytest.mark.django_db


def test_unblocked_and_doubled_until_friday_in_two_clicks_and_a_reason(
    admin_client: Client, page: str, ann: User
) -> None:
    text = press(admin_client, page, "reset")
    assert "Reset 2 counters: export, search. Checked: none of them blocks the caller now." in text
    assert "No rule rejects this caller now." in text
    assert 'value="he called"' not in text  # another act has its own reason
    friday = next(day for day in days() if day.is_chosen)
    text = press(admin_client, page, "more", until=friday.value, multiplier="2")
    assert "2 times each limit until" in text
    assert "Checked: it is in force" in text
    assert "0 of 6" in text
    assert "limits times 2" in text
    [row] = TierAssignment.objects.all()
    assert timezone.localtime(row.ends_at).isoformat()[:19] == f"{_next_day(friday.value)}T00:00:00"
    assert ask(ann, 6)
    assert not ask(ann)
    assert LogEntry.objects.count() == 3  # the reset, the grant, and the new row
    assert "What operators did" in text
    assert "he called" in text


def test_the_reason_of_an_act_that_failed_is_kept_once(admin_client: Client, page: str) -> None:
    assert 'value="he called"' in press(admin_client, page, "more", multiplier="0")
    assert 'value="he called"' not in shown(admin_client.get(page))


def test_a_site_without_tiers_says_it_before_the_button(admin_client: Client, page: str) -> None:
    assert "Add a default tier" not in shown(admin_client.get(page))
    Tier.objects.all().delete()
    text = shown(admin_client.get(page))
    assert "Without tiers all callers have the same limits. Add a default tier under Tiers first." in text
    assert 'value="more"' not in text
    assert "Nothing was changed. Without tiers all" in press(admin_client, page, "more", multiplier="2")


def _next_day(text: str) -> str:
    return (date.fromisoformat(text) + timedelta(days=1)).isoformat()


def test_resets_gives_back_and_ends_leases_of_one_counter(admin_client: Client, page: str, ann: User) -> None:
    assert "2 of 3 are left now" in press(admin_client, page, "refund:export:f3600", **{"units:export:f3600": "2"})
    assert "Reset 1 counter: search." in press(admin_client, page, "reset:search:f3600")
    jobs = Rule.objects.create(slug="jobs", name="Jobs", mode="enforce", partition_by=["user"])
    RuleLimit.objects.create(rule=jobs, quota=1, window_seconds=Decimal(60), algorithm="concurrency")
    ask(ann)
    [name] = [row.counter.name for row in admin_client.get(page).context["counters"] if row.counter.rule.slug == "jobs"]
    response = admin_client.get(f"{page}&leases={name}")
    assert "In progress: Jobs" in shown(response)
    [lease] = response.context["leases"]
    assert f'value="end-lease:{lease.began_us}:{name}"' in shown(response)
    assert "1 of 1 are free now" in press(
        admin_client, f"{page}&leases={quote(name)}", f"end-lease:{lease.began_us}:{name}"
    )


def test_denies_and_allows(admin_client: Client, page: str, ann: User) -> None:
    text = press(admin_client, page, "deny")
    assert re.search(r"An access entry rejects every request of this caller until [^<]+ C[SD]T", text)
    assert not ask(ann)
    text = press(admin_client, page, "allow")
    assert f"Nothing was changed. The access entry “deny user {ann.pk}” is in force until" in text
    assert "End the access entry now" in text
    assert "in the time zone America/Chicago" in text
    text = press(admin_client, page, "end-access")
    assert "Ended the access entry" in text
    assert "End the access entry now" not in text
    assert "allows this caller past all rules until" in press(admin_client, page, "allow")
    assert ask(ann, 5)
    assert AccessEntry.objects.get().action == "allow"


@pytest.mark.parametrize(
    "wrong",
    [{"reason": ""}, {"reason": " "}, {"token": "forged"}, {"act": "nothing"}, {"act": "reset:nothing:f60"},
     {"act": "refund:export:f3600"}, {"act": "refund:export:f3600", "units:export:f3600": "-1"},
     {"act": "more", "multiplier": "0"}, {"act": "more", "multiplier": "NaN"}, {"act": "more", "until": "2020-01-01"},
     {"act": "more", "until": "soon"}, {"act": "more", "date": "9999-12-31"}, {"act": "tier", "tier": "gold"},
     {"act": "end-lease:x:export:f3600"}, {"act": "end-lease:1:export:f3600"}],
)  # fmt: skip
def test_what_is_wrong_is_said_and_changes_nothing(admin_client: Client, page: str, wrong: dict[str, str]) -> None:
    text = press(admin_client, page, **{"act": "reset", "multiplier": "2", **wrong})  # type: ignore[arg-type]
    assert "Nothing was changed." in text
    assert "3 of 3" in text
    assert not LogEntry.objects.exists()
    assert not TierAssignment.objects.exists()


def test_friday_is_always_to_come() -> None:
    monday = date(2026, 11, 16)
    for ahead in range(7):
        today = monday + timedelta(days=ahead)
        [friday] = [day.value for day in days(today) if day.is_chosen]
        found = date.fromisoformat(friday)
        assert found.weekday() == 4
        assert 0 < (found - today).days <= 7


@pytest.mark.django_db(transaction=True)
def test_two_who_send_the_same_form_at_once_give_back_once(admin_client: Client, page: str, admin_user: User) -> None:
    token = admin_client.get(page).context["token"]
    sent = {"token": token, "reason": "he called", "act": "refund:export:f3600", "units:export:f3600": "1"}
    clients = [Client() for _ in range(4)]
    for client in clients:
        client.force_login(admin_user)
    with ThreadPoolExecutor(4) as threads:
        assert {response.status_code for response in threads.map(lambda each: each.post(page, sent), clients)} == {302}
    assert "2 of 3" in shown(admin_client.get(page))
    assert LogEntry.objects.count() == 1


def test_an_act_that_ends_while_it_is_looked_for_is_found(admin_client: Client, page: str) -> None:
    """As on PostgreSQL, where each query sees what was committed before it."""
    token = admin_client.get(page).context["token"]
    sent = {"token": token, "reason": "he called", "act": "refund:export:f3600", "units:export:f3600": "1"}
    admin_client.post(page, sent)
    entry = LogEntry.objects.get()
    done = entry.change_message
    LogEntry.objects.update(change_message=done.replace("]", " begun]"))

    def end(execute: Any, sql: str, *given: Any) -> Any:
        found = execute(sql, *given)
        if sql.startswith("SELECT") and "LIKE" in sql:
            LogEntry.objects.update(change_message=done)
        return found

    with connection.execute_wrapper(end):
        admin_client.post(page, sent)
    assert LogEntry.objects.get().change_message == done
    assert "2 of 3" in shown(admin_client.get(page))


@pytest.mark.django_db(transaction=True)
def test_the_engine_is_called_outside_transactions(
    admin_client: Client, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ATOMIC_REQUESTS would open one for the whole request."""
    reset, open_now = get_engine().reset, []
    monkeypatch.setattr(
        get_engine(), "reset", lambda charges: open_now.append(connection.in_atomic_block) or reset(charges)
    )
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    text = press(admin_client, page, "reset")
    assert open_now == [False]
    number = LogEntry.objects.get().change_message.rpartition(" ")[2].removesuffix("]")
    assert f'<span class="ratelimiter-quiet">act {number}</span>' in text
    assert "If a form is sent twice" in text
