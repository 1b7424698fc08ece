"""References of rejections, as they are read out, typed and pasted."""

from __future__ import annotations

import pytest

from django_ratelimiter.values.references import (
    MAX_CANDIDATES,
    MAX_TEXT,
    Reference,
    parse_reference,
    reference_of,
    references_in,
)

DIGEST = "eJL8d1F2-oIl0_abcdefgh"


def test_a_reference_is_read_back() -> None:
    reference = parse_reference(reference_of("code:shop.views.order", DIGEST))
    assert reference == Reference("code:shop.views.order", "eJL8d1F2")
    assert reference.is_of(DIGEST)
    assert str(reference) == "code:shop.views.order#eJL8d1F2"


@pytest.mark.parametrize("typed", ["export#eJL8d1F2", " export # ejl8d1f2 ", "export#EJL8D1F2", "export#eJI8dlF2"])
def test_case_and_what_looks_alike_do_not_matter(typed: str) -> None:
    reference = parse_reference(typed)
    assert reference is not None
    assert reference.is_of(DIGEST)
    assert not reference.is_of("x" + DIGEST)


def test_the_rule_is_found_in_any_case() -> None:
    reference = Reference("EXPORT", "eJL8d1F2")
    assert reference.rule_in(["search", "Export", "export", "exports"]) == ["Export", "export"]
    assert reference.rule_in(["export", "EXPORT"]) == ["EXPORT"]
    assert reference.rule_in(["search"]) == []


@pytest.mark.parametrize(
    "typed",
    [
        "  export#eJL8d1F2\n",
        '"export#eJL8d1F2"',
        "“export#eJL8d1F2”",
        "'export#eJL8d1F2'.",
        "(export#eJL8d1F2)",
        "`export#eJL8d1F2`,",
        "Reference: export#eJL8d1F2",
        "reference : export#eJL8d1F2",
        "Referenz: export # eJL8d1F2",
        "X-RateLimit-Reference: export#eJL8d1F2",
        'Reference: "export#eJL8d1F2"',
        "reference=export#eJL8d1F2",
        "He says it is export#eJL8d1F2, since noon.",
    ],
)
def test_what_stands_around_it_does_not_matter(typed: str) -> None:
    assert parse_reference(typed) == Reference("export", "eJL8d1F2")


PROBLEM = (
    '{"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Too many requests", '
    '"violated-policies": ["export"], "reference": "export#eJL8d1F2"}'
)
TEXT = "Too many requests\nYou have sent more.\nPlease try again in 47 seconds.\nReference: export#eJL8d1F2\n"
FIELDS = "HTTP/1.1 429 Too Many Requests\r\nX-RateLimit-Reference: export#eJL8d1F2\r\nRetry-After: 1200\r\n"
PAGE = '<p class="reference">Reference: <code>export#eJL8d1F2</code></p>'


@pytest.mark.parametrize("is_one_line", [False, True], ids=["", "one line"])
@pytest.mark.parametrize("pasted", [PROBLEM, PROBLEM.replace(": ", ":"), TEXT, FIELDS, PAGE, FIELDS + "\r\n" + PROBLEM])
def test_it_is_found_in_a_whole_response(pasted: str, is_one_line: bool) -> None:
    """A field of one line drops the breaks of what is pasted into it, and puts nothing in their place."""
    pasted = pasted.replace("\r", "").replace("\n", "") if is_one_line else pasted
    assert parse_reference(pasted) == Reference("export", "eJL8d1F2")


@pytest.mark.parametrize(
    "text",
    [
        *("", "export", "export#", "export#eJL8d1F", "export#eJL8d1F2x", "#eJL8d1F2", "ä#eJL8d1F2"),
        "https://example.org/docs#sections",
        "/docs#sections",
        "curl 'https://example.org/export?a=b#sections'",
        '{"type": "https://iana.org/assignments/http-problem-types#quotaabc"}',
        "x" * MAX_TEXT + " export#eJL8d1F2",
        *("a" * 9_998 + "#", "a:" * 4_999 + "#", "a " * 4_999 + "#", "#" * 10_000, "a#" * 5_000),
    ],
)
def test_what_is_none(text: str) -> None:
    assert parse_reference(text) is None


MAIL = "Ticket word#12345678, see wiki#abcdefgh: I get 429.\nReference: Export#eJL8d1F2, and order#87654321."


def test_of_several_words_that_of_a_rule_counts() -> None:
    assert [str(each) for each in references_in(MAIL)] == [
        "word#12345678",
        "wiki#abcdefgh",
        "Export#eJL8d1F2",
        "order#87654321",
    ]
    assert parse_reference(MAIL, ["other", "export"]) == Reference("Export", "eJL8d1F2")
    assert parse_reference(MAIL) == Reference("word", "12345678")
    assert len(references_in(" ".join(f"word#{number}" for number in range(10_000_000, 10_000_050)))) == MAX_CANDIDATES


def test_the_field_s_comes_first() -> None:
    assert str(references_in(MAIL + "\nX-RateLimit-Reference: api#eJL8d1F2")[0]) == "api#eJL8d1F2"
