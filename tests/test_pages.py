"""Each page of the docs can be found, and its links lead somewhere."""

from __future__ import annotations

import re

import pytest

from .pages import PAGES, ROOT, TEXTS

pytestmark = pytest.mark.once

#: Of the pages, in the index and the sidebar.
GROUPS = ["Start", "Limit things", "Operate", "Deploy", "Reference", "For contributors"]


@pytest.mark.parametrize("name", sorted(PAGES.keys() - {"docs/index.md"}))
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


def test_every_page_is_in_the_index_once() -> None:
    """And so in the sidebar, which `group_the_pages` in docs/conf.py makes of it: links without anchors."""
    _, *groups = re.split(r"^## ", PAGES["docs/index.md"], flags=re.MULTILINE)
    assert [group.splitlines()[0] for group in groups] == GROUPS
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", "".join(groups))
    assert sorted(linked) == sorted({name.removeprefix("docs/") for name in PAGES} - {"index.md"})


def test_the_readme_is_short() -> None:
    assert TEXTS["README.md"].count("\n") < 150


def test_every_recipe_is_in_the_index_with_its_minutes() -> None:
    page = PAGES["docs/howto/recipes.md"]
    told = re.findall(r"recipes\.md#([\w-]+)\)[^\n]*: (\d+)$", PAGES["docs/index.md"], re.MULTILINE)
    recipes = re.findall(r"^## (.*)\n\n\*\*(\d+) minutes\.\*\* ", page, re.MULTILINE)
    assert told == [
        (re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-"), minutes) for heading, minutes in recipes
    ]
    assert len(told) == 10
