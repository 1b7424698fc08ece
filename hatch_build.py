"""How the package index shows README.md: with absolute links, to the files of the released version."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: The target of a link or picture within the repository: `](docs/index.md)`, but neither an address nor an anchor.
RELATIVE = re.compile(r"\]\((?!https?://|#|mailto:)([^()\s]+)\)")
PICTURES = (".png", ".svg")


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Return the text with each relative link as an address in the repository on GitHub, at the version's tag."""
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def absolute(found: re.Match[str]) -> str:
        path = found[1]
        base = f"{raw}/v{version}" if path.endswith(PICTURES) else f"{repository}/blob/v{version}"
        return f"]({base}/{path})"

    return RELATIVE.sub(absolute, text)


class LongDescription(MetadataHookInterface):
    """Fills in `readme`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = with_absolute_links(text, metadata["urls"]["Repository"], metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
