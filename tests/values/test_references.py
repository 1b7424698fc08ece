"""References of rejections, as they are read out and typed."""

from __future__ import annotations

import pytest

from django_ratelimiter.values.references import Reference, parse_reference, reference_of

DIGEST = "eJL8d1F2-oIl0_abcdefgh"


def test_a_reference_is_read_back() -> None:
    reference = parse_reference(reference_of("code:shop.views.order", DIGEST))
    assert reference == Reference("code:shop.views.order", "eJL8d1F2")
    assert reference.is_of(DIGEST)


@pytest.mark.parametrize("typed", ["export#eJL8d1F2", " export # ejl8d1f2 ", "export#EJL8D1F2", "export#eJI8dlF2"])
def test_case_and_what_looks_alike_do_not_matter(typed: str) -> None:
    reference = parse_reference(typed)
    assert reference is not None
    assert reference.is_of(DIGEST)
    assert not reference.is_of("x" + DIGEST)


@pytest.mark.parametrize(
    "text", ["", "export", "export#", "export#eJL8d1F", "export#eJL8d1F2x", "#eJL8d1F2", "ä#eJL8d1F2"]
)
def test_what_is_none(text: str) -> None:
    assert parse_reference(text) is None
