"""Pages make as many queries on a large site as on a small one, and 40 at most, and meet few files of the package.

`python -m benchmarks.admin` measures the same pages on a site of half a thousand rules and a million buckets of usage.
"""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test import client as test_client
from django.urls import reverse

from benchmarks.admin.__main__ import MAX_QUERIES, Asked
from benchmarks.admin.fill import fill
from benchmarks.admin.pages import addresses
from tests import admin_pages

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def queries(client: Client) -> dict[str, list[str]]:
    """The queries of each page."""
    found = {}
    client.get(reverse("admin:index"))  # which reads the types of content
    client.get(dict(addresses())["caller, a top client"])  # whom the reports know from now on
    for name, url in addresses():
        asked = Asked()
        with connection.execute_wrapper(asked):
            assert client.get(url).status_code == 200, name
        found[name] = [sql for sql, _ in asked.queries]
    return found


def test_no_page_makes_more_queries_on_a_larger_site(
    admin_client: Client, admin_user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_client, "store_rendered_templates", lambda *given, **named: None)  # copies each context
    with transaction.atomic():
        fill(admin_user, share=0.004)
        small = queries(admin_client)
        transaction.set_rollback(True)
    fill(admin_user, share=0.02)
    for name, made in queries(admin_client).items():
        assert len(made) <= len(small[name]), (name, made)
        assert len(made) <= MAX_QUERIES, name


#: The most files of pages, by their names in `tests.admin_pages`.
MOST = {"overview": 35, "usage": 25, "usage-of-a-rule": 25, "top-callers": 25}


def files_met(client: Client, url: str) -> set[str]:
    """The files of the package in which a function ran while a page was made that was made before."""
    assert client.get(url).status_code == 200
    found: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename.partition("/django_ratelimiter/")[2]):
            found.add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        client.get(url)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.django_db(transaction=True)  # as on a site: a transaction around it all reads the rules anew
def test_the_overview_and_reports_meet_few_files(client: Client) -> None:
    author = admin_pages.users()["superuser"]
    admin_pages.fill(author)
    client.force_login(author)
    for page in admin_pages.pages():
        if page.name in MOST:
            found = files_met(client, page.url)
            assert {"middleware.py", "admin/viewer.py"} <= found, "the profiler sees nothing"
            assert len(found) <= MOST[page.name], f"{page.name}: {len(found)} files"
