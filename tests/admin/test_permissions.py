"""What staff see who may do some things, and not others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from django_ratelimiter.models import Rule

from .pages import ADD_RULE, page_of, rule_form, shown

pytestmark = pytest.mark.django_db

HINT = "The limits of this rule are not shown, and you cannot change them"


@pytest.mark.parametrize(
    ("codenames", "hint"),
    [
        (["change_rule"], True),
        (["view_rule"], True),
        (["view_rule", "view_rulelimit"], False),
        (["change_rule", "view_rulelimit"], False),
        (["change_rule", "change_rulelimit"], False),
    ],
)
def test_says_why_a_rule_shows_no_limits(
    operator: Callable[..., Client], rule: Rule, codenames: list[str], hint: bool
) -> None:
    page = shown(operator(*codenames).get(page_of(rule)))
    assert (HINT in page) is hint
    assert ("free: 100 per minute" in page) is hint  # what the list of rules shows them as well


def test_says_that_a_new_rule_will_have_no_limits(operator: Callable[..., Client]) -> None:
    page = shown(operator("add_rule", "view_rule").get(ADD_RULE))
    assert "You cannot add limits to this rule" in page


def test_the_hint_stays_with_errors(operator: Callable[..., Client], rule: Rule) -> None:
    response = operator("change_rule").post(page_of(rule), rule_form(name=""))
    assert HINT in shown(response)
