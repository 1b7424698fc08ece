"""Names that the docs use exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.apps import apps

import django_ratelimiter
from django_ratelimiter import tasks
from django_ratelimiter.engine import Engine

from .pages import ROOT, TEXTS
from .test_public_names import resolved

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
