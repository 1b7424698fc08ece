"""A caller's page tells of requests that an access entry has denied, to who may see access entries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.identity import digest
from django_ratelimiter.models import AccessEntry
from django_ratelimiter.usage.live import denials
from django_ratelimiter.values.access import AccessRecord

from ..pages import shown
from .page import CALLER

pytestmark = pytest.mark.django_db

ADDRESS = "192.0.2.7"
PAGE = f"{CALLER}?kind=ip&value={ADDRESS}"
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def entry() -> AccessEntry:
    return AccessEntry.objects.create(action="deny", kind="ip", value="192.0.2.0/24", reason="scraping")


def deny(entry: AccessEntry, view: str = "export", times: int = 1) -> None:
    value = f"ip:{ADDRESS}"
    for _ in range(times):
        denials.note(AccessRecord("deny", "ip", entry.value, pk=entry.pk), value, digest(value), view)


def lines(client: Client, page: str = PAGE) -> list[str]:
    """What is read in each line of the last rejections."""
    _, heading, rest = shown(client.get(page)).partition('<h2 id="ratelimiter-rejections">')
    found = re.findall(r"<li>(.*?)</li>", rest.partition("</ul>")[0], re.DOTALL) if heading else []
    return [" ".join(re.sub(r"<[^>]*>", " ", each).split()) for each in found]


def test_says_when_where_how_often_and_by_which_entry(admin_client: Client, entry: AccessEntry) -> None:
    deny(entry, times=3)
    [line] = lines(admin_client)
    assert "Access entry 192.0.2.0/24" in line
    assert ": 3 since " in line
    assert line.endswith("export")
    url = reverse("admin:django_ratelimiter_accessentry_change", args=[entry.pk])
    assert f'<a href="{url}">192.0.2.0/24</a>' in shown(admin_client.get(PAGE))
    assert lines(admin_client, f"{CALLER}?digest={digest(f'ip:{ADDRESS}')}") == [line]
    assert lines(admin_client, f"{CALLER}?kind=ip&value=192.0.2.8") == []


def test_an_entry_that_is_deleted_is_named_by_its_kind(admin_client: Client, entry: AccessEntry) -> None:
    deny(entry)
    entry.delete()
    [line] = lines(admin_client)
    assert "Access entry IP address" in line


def test_are_for_who_may_see_access_entries(operator: Callable[..., Client], entry: AccessEntry) -> None:
    deny(entry)
    client = operator("unblock_caller", "view_usage_report")
    assert lines(client) == []
    User.objects.get(username="operator").user_permissions.add(Permission.objects.get(codename="view_accessentry"))
    assert len(lines(client)) == 1


def test_take_no_more_queries_where_there_are_many(
    admin_client: Client, entry: AccessEntry, django_assert_max_num_queries: Any
) -> None:
    admin_client.get(PAGE)
    for number in range(30):
        row = AccessEntry.objects.create(action="deny", kind="ip", value=f"192.0.2.7/{number + 2}")
        deny(row, view=f"view-{number}")
    with django_assert_max_num_queries(20):
        assert lines(admin_client)
