"""Each page of the docs can be found, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from .pages import PAGES, ROOT, TEXTS

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_first_what_it_is_for(name: str) -> None:
    [first] = re.findall(r"\A(?:\([\w-]+\)=\n+)?# .*\n\n(.*)", PAGES[name])
    assert re.match(
        r"This page (says|is for|lists|describes|leads|compares|explains)|Use this page|Look up here|How to ", first
    )


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", TEXTS[name]):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        assert page.is_file(), f"{name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
