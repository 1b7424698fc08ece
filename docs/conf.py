"""How Sphinx builds these pages: `sphinx-build -W docs /tmp/docs`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parent.parent

project = "django_ratelimiter"
author = "The django_ratelimiter authors"
copyright = f"2026, {author}"
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# For `make linkcheck`. Of sites that build their headings in the browser, only the page is asked for.
linkcheck_ignore = [r"http://(127\.0\.0\.1|localhost)[:/].*"]
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*", r"https://fetch\.spec\.whatwg\.org/.*"]

html_theme = "furo"
html_title = "django_ratelimiter"
html_static_path = ["static"]
html_css_files = ["own.css"]


#: In the tables of these pages each row that begins with names has an anchor for each: the name in small letters, such
#: as `settings.md#cache_alias`.
LOOKED_UP = {
    "howto/usage",
    "howto/rest-framework",
    *(f"reference/{name}" for name in ("checks", "models", "settings")),
}


class AnchorRows(SphinxTransform):
    """Make the name of each row a link to itself. Names in tables of models begin with the model: `rule-slug`."""

    default_priority = 500

    def apply(self, **options: Any) -> None:
        if self.env.docname not in LOOKED_UP:
            return
        anchors = self.document.myst_slugs
        for row in self.document.findall(lambda node: isinstance(node, nodes.row) and node.parent.tagname == "tbody"):
            cell, section = row[0][0], row.parent.parent.parent.parent
            names = cell.astext().split(", ")
            is_model = self.env.docname == "reference/models" and section.parent.parent is self.document
            within = f"{section['ids'][0]}-" if is_model else ""
            for name in names:
                anchor = within + re.sub(r"[^\w-]", "", name).lower()
                if anchor not in anchors and " " not in name:
                    anchors[anchor] = (row.line or 0, anchor, name)
                    (row[0] if row["ids"] else row)["ids"].append(anchor)
            if row["ids"] and len(names) == 1:
                cell[:] = [nodes.reference("", "", *cell.children, refid=row["ids"][0])]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_transform(AnchorRows)
    app.connect("doctree-resolved", put_timelines_into_the_page)
    app.connect("source-read", group_the_pages)


def put_timelines_into_the_page(app: Any, doctree: nodes.document, docname: str) -> None:
    """Make the timelines part of their pages, so that they follow the page's switch for dark mode."""
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].startswith("explanation/algorithms/"):
            svg = (ROOT / "docs" / image["uri"]).read_text("utf-8")
            image.replace_self(nodes.raw("", svg, format="html"))


def group_the_pages(app: Any, docname: str, source: list[str]) -> None:
    """Make the sidebar of the lists in the index: each heading is a group, each link without an anchor a page."""
    if docname == "index":
        first, *groups = re.split(r"^## ", source[0], flags=re.MULTILINE)
        for group in groups:
            pages = "\n".join(re.findall(r"\]\(([\w/-]+)\.md\)", group))
            first += f"## {group}\n```{{toctree}}\n:hidden:\n:caption: {group.splitlines()[0]}\n\n{pages}\n```\n\n"
        source[0] = first
