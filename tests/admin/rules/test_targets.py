"""The admin warns of a rule that can match nothing: when it is saved, and in the list of rules."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.test.utils import override_settings
from django.utils.html import escape

from django_ratelimiter.models import Rule, RuleLimit

from ..pages import ADD_RULE, RULES, rule_form

pytestmark = pytest.mark.django_db


def told(client: Client, **fields: Any) -> list[str]:
    """What is said after saving a rule."""
    usual = {"path_kind": "any", "path": "", "partition_by": ["ip"]}
    form = rule_form({"quota": 5, "window_seconds": 60}, **usual | fields)
    assert client.post(ADD_RULE, form).status_code == 302
    shown = client.get(RULES).context["messages"]
    return [str(message) for message in shown if message.level_tag == "warning"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"view_name": "item"}, []),
        (
            {"path_kind": "route", "path": "items/<int:pk>/"},
            ["No route is “items/<int:pk>/”, so this rule matches no request. Did you mean “items/<int:item>/”?"],
        ),
        (
            {"scope": "mail"},
            [
                "No view names the scope “mail”, so this rule applies only where other code does, with limiter.check, "
                "limiter.charge, limiter.slot or in_slot."
            ],
        ),
    ],
)
def test_what_the_urls_lack_is_told_when_a_rule_is_saved(
    admin_client: Client, fields: dict[str, Any], expected: list[str]
) -> None:
    assert told(admin_client, **fields) == expected
    assert Rule.objects.exists()


def test_a_path_with_the_prefix_of_the_site_is_told_when_a_rule_is_saved(admin_client: Client) -> None:
    with override_settings(FORCE_SCRIPT_NAME="/shop/"):
        [warning] = told(admin_client, path_kind="prefix", path="/shop/items/")
    assert warning == (
        "The path begins with /shop, below which this site is mounted. Paths of rules do not contain that prefix, "
        "so this rule probably matches no request."
    )


def test_the_list_of_rules_marks_them(admin_client: Client) -> None:
    for slug, fields in {
        "good": {"view_name": "item"},
        "bad": {"view_name": "itmes"},
        "worse": {"path_kind": "route", "path": "itmes/"},
        "mail": {"scope": "mail"},
    }.items():
        rule = Rule.objects.create(slug=slug, name=slug, **fields)
        RuleLimit.objects.create(rule=rule, quota=5, window_seconds=60)
    page = admin_client.get(RULES).content.decode()
    assert page.count(escape("no such view")) == 1
    assert page.count(escape("no such route")) == 1
