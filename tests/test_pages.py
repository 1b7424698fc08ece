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


def anchors(page: str) -> set[str]:
    """Return those of the headings and, as `AnchorRows` in docs/conf.py makes them, of the rows of tables."""
    found = {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in re.findall(r"(?m)^#+ (.*)$", page)}
    within = ""
    for heading, name in re.findall(r"(?m)^## (.*)$|^\| `?([^`|]*[^`| ])`? \|", page):
        within = heading or within
        found |= {re.sub(r"[^\w-]", "", text).lower() for text in (name, f"{within}-{name}")}
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", TEXTS[name]):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        assert page.is_file(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(page.read_text("utf-8")), f"{name} links to {target}"
