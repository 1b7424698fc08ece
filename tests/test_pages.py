"""Each page of the docs can be found, its links lead somewhere, and the names that it uses exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.apps import apps

import django_ratelimiter
from django_ratelimiter import tasks
from django_ratelimiter.engine import Engine

from .pages import PAGES, ROOT, TEXTS
from .test_public_names import resolved

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


def test_every_recipe_is_in_the_index_with_its_minutes() -> None:
    page = PAGES["docs/howto/recipes.md"]
    told = re.findall(r"recipes\.md#([\w-]+)\)[^\n]*: (\d+)$", PAGES["docs/index.md"], re.MULTILINE)
    recipes = re.findall(r"^## (.*)\n\n\*\*(\d+) minutes\.\*\* ", page, re.MULTILINE)
    assert told == [
        (re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-"), minutes) for heading, minutes in recipes
    ]
    assert len(told) == 10


PACKAGE = Path(django_ratelimiter.__file__).parent
#: Where a path in the docs may begin.
TOPS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
#: Pages about the inside: all paths in them are ours, and begin at the root or in the package.
INSIDE = {
    name
    for name in TEXTS
    if name in ("CONTRIBUTING.md", "django_ratelimiter/README.md", "docs/explanation/architecture.md")
    or name in ("docs/decisions.md", "docs/howto/add-an-algorithm.md")
}
#: `limiter/`, `engine/redis/check.lua`, `tests/test_docs.py`; NAME stands for any name.
PATH = re.compile(r"`((?:[\w-]+/)+(?:[\w-]+\.[a-z]+)?|[\w-]+\.(?:py|lua))`")


def paths(name: str) -> set[str]:
    """The paths of ours that a page names."""
    found = set(PATH.findall(TEXTS[name]))
    return found if name in INSIDE else {path for path in found if path.partition("/")[0] in TOPS}


#: What stands for any name in a path: the last is the algorithm that the docs add as an example.
PLACEHOLDERS = re.compile("NAME|session_window")


def exists(path: str) -> bool:
    """Whether there is such a file or folder, at the root, in the package or among its templates."""
    pattern = PLACEHOLDERS.sub("*", path).rstrip("/")
    if "/" not in path:
        return any(PACKAGE.rglob(pattern))
    return any(any(top.glob(pattern)) for top in (ROOT, PACKAGE, PACKAGE / "templates"))


@pytest.mark.parametrize("name", TEXTS)
def test_paths_in_the_docs_exist(name: str) -> None:
    assert [path for path in sorted(paths(name)) if not exists(path)] == []


def names_of_others() -> set[str]:
    """What begins as our modules do and is none: tasks and permissions."""
    models = apps.get_app_config("django_ratelimiter").get_models()
    permissions = {codename for model in models for codename, _label in model._meta.permissions}
    permissions |= {f"view_{model._meta.model_name}" for model in models}
    return {tasks.collect_usage.name, tasks.watch_usage.name, *(f"django_ratelimiter.{name}" for name in permissions)}


@pytest.mark.parametrize("name", TEXTS)
def test_modules_in_the_docs_exist(name: str) -> None:
    found = set(re.findall(r"(?<![\w./-])django_ratelimiter(?:\.[A-Za-z_]\w*)+", TEXTS[name]))
    found = {dotted for dotted in found if not re.fullmatch(r"django_ratelimiter\.[EW]\d+", dotted)}  # checks
    assert [dotted for dotted in sorted(found - names_of_others()) if resolved(dotted) is None] == []


def test_names_in_the_picture_of_the_path_exist() -> None:
    picture = (ROOT / "docs/explanation/request-path.svg").read_text("utf-8")
    named = re.findall(r'<text class="code"[^>]*>([\w.]+)', picture)
    assert {"engine.check", "check.lua"} <= set(named)
    for name in named:
        what, _, method = name.partition(".")
        if name.endswith(".lua"):
            assert exists(name)
        elif what == "engine":
            assert hasattr(Engine, method), name
        else:
            assert resolved(f"django_ratelimiter.{name}"), name
