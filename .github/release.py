"""Exit with an error unless the tag, the version, the changelog and the repository agree: release.py TAG ADDRESS."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def disagreements(tag: str, address: str) -> list[str]:
    """Return what is wrong, in sentences. tag: such as v1.0.0; address: of the repository that publishes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = []
    if tag != f"v{project['version']}":
        found.append(f"The tag is {tag}, and the version in pyproject.toml is {project['version']}.")
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if not heading or not re.fullmatch(rf"{re.escape(project['version'])} \(\d{{4}}-\d\d-\d\d\)", heading[1]):
        found.append(f"CHANGELOG.md must begin with “## {project['version']} (YEAR-MONTH-DAY)”.")
    if address.removesuffix("/").lower() != project["urls"]["Repository"].lower():
        found.append(f"This is {address}, and pyproject.toml names {project['urls']['Repository']}.")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(disagreements(*sys.argv[1:])) or None)
