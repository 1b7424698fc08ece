"""The page of a rule with many limits: what each more of them costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.template import Template
from django.test import Client
from django.test.html import parse_html
from django.test.utils import CaptureQueriesContext

from django_ratelimiter.admin.rules.selects import PlainSelect
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules import cache

from ..pages import page_of

pytestmark = pytest.mark.django_db

Measure = Callable[[int, int], tuple[int, int]]


@pytest.fixture
def measure(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """The page of a rule with so many limits and tiers: (queries, templates rendered for its fields)."""
    rendered: list[str] = []
    render = Template.render

    def count(template: Template, context: Any) -> Any:
        rendered.append(str(template.name))
        return render(template, context)

    monkeypatch.setattr(Template, "render", count)

    def measured(limits: int, tiers: int) -> tuple[int, int]:
        with cache.editing():
            RuleLimit.objects.all().delete()
            Tier.objects.all().delete()
            rule, _created = Rule.objects.get_or_create(slug="many", defaults={"name": "Many"})
            made = [Tier.objects.create(slug=f"t{number}", name=f"T{number}") for number in range(tiers)]
            for tier in made[:limits]:
                RuleLimit.objects.create(rule=rule, tier=tier, quota=5, window_seconds=60)
        rendered.clear()
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(page_of(rule)).status_code == 200
        return len(queries), len(rendered)

    measured(1, 1)
    return measured


def test_takes_no_query_for_each_limit(measure: Measure) -> None:
    assert measure(9, 9)[0] == measure(2, 9)[0]


def test_renders_no_template_for_each_choice(measure: Measure) -> None:
    assert measure(4, 30)[1] == measure(4, 4)[1]


@pytest.mark.parametrize("value", ["", None, "b", 2])
def test_a_list_is_the_same_as_djangos(value: Any) -> None:
    choices = [("", "---"), ("b", "<b>"), (2, "two")]
    ours, djangos = (kind({"class": "x"}, choices) for kind in (PlainSelect, PlainSelect.__base__))
    first, second = (parse_html(each.render("n", value, {"id": "i"})) for each in (ours, djangos))
    assert first == second
