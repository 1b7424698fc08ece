"""How much of the package is to be read by who follows one page: the files in which a function runs."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from django.test import Client

from tests.admin_pages import fill, pages, users

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
    author = users()["superuser"]
    fill(author)
    client.force_login(author)
    for page in pages():
        if page.name in MOST:
            found = files_met(client, page.url)
            assert {"middleware.py", "admin/viewer.py"} <= found, "the profiler sees nothing"
            assert len(found) <= MOST[page.name], f"{page.name}: {len(found)} files"
