"""The documentation's pictures take little room, and look as they were taken."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.browser import Browser, missing
from tests.palettes import with_palette

PICTURES: Final = sorted((Path(__file__).parents[2] / "docs").rglob("*.png"))

#: What says in a PNG's 26th byte that each pixel names a colour of a palette.
PALETTE: Final = 3

#: Draws many colours, of which most are rare.
DRAW: Final = """
document.body.innerHTML = '';
for (let i = 0; i < 300; i++) {
    const each = document.createElement('div');
    each.style.cssText = `height: ${i < 100 ? 2 : 1}px; background: rgb(${i % 256}, ${255 - i % 256}, ${i >> 4})`;
    document.body.append(each);
}
document.body.style.margin = 0;
"""


@pytest.mark.parametrize("picture", [pytest.param(each, id=each.name) for each in PICTURES])
def test_a_picture_of_the_documentation_has_a_palette(picture: Path) -> None:
    found = picture.read_bytes()
    assert found[25] == PALETTE
    assert len(found) < 100_000


@pytest.mark.once
@pytest.mark.skipif(bool(missing()), reason=f"not on this machine: {', '.join(missing())}")
def test_a_palette_changes_only_what_is_rare(window: Browser) -> None:
    window.open("about:blank")
    window.resize(200, 400)
    window.script(DRAW)
    taken = window.pictured(400)
    found = with_palette(window, taken)
    assert found[25] == PALETTE
    assert taken[16:24] == found[16:24]  # width and height
    again = with_palette(window, found)  # what was rare counts for another colour now, so they have another order
    assert with_palette(window, again) == again  # so a browser reads it as it was meant
    window.open("about:blank")
    few = window.pictured(100)
    assert with_palette(window, few)[41:44] == b"\xff\xff\xff"
