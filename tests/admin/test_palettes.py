"""The documentation's pictures take little room, and look as they were taken."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

PICTURES: Final = sorted((Path(__file__).parents[2] / "docs").rglob("*.png"))

#: What says in a PNG's 26th byte that each pixel names a colour of a palette.
PALETTE: Final = 3


@pytest.mark.parametrize("picture", [pytest.param(each, id=each.name) for each in PICTURES])
def test_a_picture_of_the_documentation_has_a_palette(picture: Path) -> None:
    found = picture.read_bytes()
    assert found[25] == PALETTE
    assert len(found) < 100_000
