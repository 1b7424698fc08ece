"""A form of a caller's page is obeyed once, and nobody waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from django_ratelimiter.backend import get_engine

from ..pages import shown
from .page import press

pytestmark = pytest.mark.django_db


def test_a_form_that_is_sent_twice_is_obeyed_once(admin_client: Client, page: str) -> None:
    token = admin_client.get(page).context["token"]
    sent = {"token": token, "reason": "he called", "act": "give:export:f3600", "units:export:f3600": "1"}
    assert "1 of 3 are left now" in shown(admin_client.post(page, sent, follow=True))
    assert "This was already done" in shown(admin_client.post(page, sent, follow=True))
    assert "2 of 3" in shown(admin_client.get(page))


@pytest.mark.django_db(transaction=True)
def test_two_who_send_the_same_form_at_once_give_back_once(admin_client: Client, page: str, admin_user: User) -> None:
    token = admin_client.get(page).context["token"]
    sent = {"token": token, "reason": "he called", "act": "give:export:f3600", "units:export:f3600": "1"}
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
    sent = {"token": token, "reason": "he called", "act": "give:export:f3600", "units:export:f3600": "1"}
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
