"""The pages of the documentation, and what stands in them: tables, sections, fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(ROOT)): page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))}
OTHERS = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    "django_ratelimiter/README.md",
)
TEXTS = PAGES | {name: (ROOT / name).read_text("utf-8") for name in OTHERS}


def rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables in a text, without their heads, as lists of cells."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        for line in table.splitlines()[2:]:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next of its level or above."""
    level = heading.split()[0]
    found = re.search(rf"^{re.escape(heading)}$(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"There is no heading {heading!r}."
    return found[1]


def with_files(text: str) -> str:
    """What a reader has who saves the files that a page of `docs/howto` links to, as if the page showed them."""
    return re.sub(
        r"[Ss]ave\s+\[`([\w.]+)`\]\(\1\)\s+as\s+(`[\w/.]+`)\.",
        lambda found: f"{found[2]}:\n\n```python\n{(DOCS / 'howto' / found[1]).read_text('utf-8')}```",
        text,
    )


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
