"""The window of a limit: a number and a unit, which are exactly the seconds that are stored."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.admin.rules.forms import WindowField
from django_ratelimiter.models import RuleLimit

from ..pages import ADD_RULE, BrowserForm, errors_of, rule_form

FIELD = WindowField(max_digits=16, decimal_places=6, required=False)


@pytest.mark.parametrize(
    ("sent", "seconds"),
    [
        (["60", None], "60"),  # as programs send it
        (["60", "1"], "60"),
        (["15", "60"], "900"),
        (["1.5", "3600"], "5400"),
        (["0.0000001", "60"], "0.000006"),
        (["0.000001", "1"], "0.000001"),
        (["9999999999.999999", "1"], "9999999999.999999"),
    ],
)
def test_a_number_and_a_unit_are_seconds(sent: list[Any], seconds: str) -> None:
    assert FIELD.clean(sent) == Decimal(seconds)


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (["ten", "60"], "Enter a number."),
        (["sNaN", None], "Enter a number."),
        (["1", "7"], "Choose a unit"),
        (["0.0000001", "1"], "decimal places"),
        (["1e999999", "86400"], "digits"),
        (["1234567890123456789012345678901234567890", "60"], "digits"),
    ],
)
def test_what_is_no_window_is_rejected(sent: list[Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        FIELD.clean(sent)


@given(st.decimals("0.000001", "9999999999", places=6))
def test_seconds_come_back_exactly_from_what_is_shown(seconds: Decimal) -> None:
    shown = FIELD.widget.decompress(seconds)
    assert FIELD.clean([str(each) for each in shown]) == seconds
    assert not FIELD.has_changed(seconds, [str(each) for each in shown])


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ("60", ["1", 60]),
        ("90.000000", ["90", 1]),
        ("0.25", ["0.25", 1]),
        ("604800", ["7", 86_400]),
        ("5400", ["90", 60]),
    ],
)
def test_the_longest_unit_that_divides_it_is_shown(seconds: str, shown: list[Any]) -> None:
    assert FIELD.widget.decompress(Decimal(seconds)) == shown


@pytest.mark.django_db
class TestForm:
    def test_a_unit_is_stored_as_seconds(self, admin_client: Client) -> None:
        limit = {"quota": 5, "window_seconds": "1.5", "window_seconds_unit": "3600"}
        assert admin_client.post(ADD_RULE, rule_form(limit)).status_code == 302
        assert RuleLimit.objects.get().window_seconds == 5_400

    def test_what_was_typed_stays_beside_an_error(self, admin_client: Client) -> None:
        limit = {"quota": "ten", "window_seconds": "1.50", "window_seconds_unit": "3600"}
        response = admin_client.post(ADD_RULE, rule_form(limit))
        assert "quota" in errors_of(response)["limits"][0]
        sent = BrowserForm(response.content.decode()).sent
        assert (sent["limits-0-window_seconds"], sent["limits-0-window_seconds_unit"]) == (["1.50"], ["3600"])

    def test_a_new_limit_is_in_seconds_until_a_unit_is_chosen(self, admin_client: Client) -> None:
        sent = BrowserForm(admin_client.get(ADD_RULE).content.decode()).sent
        assert sent["limits-0-window_seconds_unit"] == ["1"]
