"""Exit with an error unless the tag, the version, the changelog and the repository agree: release.py TAG ADDRESS.

TAG is --dry-run: say what a tag of this version would be rejected for, and exit without an error.
"""

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


def main(tag: str, address: str) -> str | int:
    """Return the code, or what to exit with."""
    if tag != "--dry-run":
        return "\n".join(disagreements(tag, address)) or 0
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    wrong = disagreements(f"v{version}", address)
    print("\n".join([f"The tag v{version} would be rejected:", *wrong]) if wrong else f"v{version} can be tagged.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
