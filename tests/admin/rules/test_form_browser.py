"""The form of a rule in a browser: in Django's layout, and in layouts that a theme may have instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings

from django_ratelimiter.models import Rule, RuleLimit, Tier
from tests.browser import Browser

from ..pages import ADD_RULE, IN_BROWSER, open_as

pytestmark = IN_BROWSER

#: What Django's page of a rule says of each field, in another layout.
LAYOUTS: Final = {
    # A line for each field, of other names: as in grappelli, jazzmin and unfold.
    "lines": """<section>{% for line in fieldset %}{% for field in line %}<div class="form-row grp-row">
        <p>{{ field.label_tag }}</p>{% if field.is_readonly %}{{ field.contents }}{% else %}{{ field.field }}{% endif %}
        {{ field.errors }}</div>{% endfor %}{% endfor %}</section>""",
    # Nothing that belongs to one field alone: none can be hidden together with its label.
    "flat": """<p>{% for line in fieldset %}{% for field in line %}{{ field.label_tag }}
        {% if field.is_readonly %}{{ field.contents }}{% else %}{{ field.field }}{% endif %}
        {% endfor %}{% endfor %}</p>""",
}

#: The fields of a new limit: all, and those that the default algorithm uses.
USED: Final = ["tier", "unlimited", "quota", "window_seconds", "window_seconds_unit", "soft_quota", "algorithm"]
OTHERS: Final = ["calendar", "timezone", "anchor_day", "anchor", "burst", "refill", "slots", "max_delay_ms"]
FIELDS: Final = [*USED, *OTHERS]


@pytest.fixture
def open_form(window: Browser, live_server: Any, tmp_path: Path) -> Iterator[Callable[[str], Browser]]:
    """Open the form of a new rule in a layout: `open_form("lines")`; "" = Django's."""
    User.objects.create_superuser("admin", password="secret")

    def open_in(layout: str) -> Browser:
        if layout:
            (tmp_path / "admin/includes").mkdir(parents=True)
            (tmp_path / "admin/includes/fieldset.html").write_text(LAYOUTS[layout])
        open_as(window, "admin", f"{live_server.url}{ADD_RULE}")
        window.wait_for("#rule_form")
        window.complaints()
        return window

    engine = {**settings.TEMPLATES[0], "DIRS": [tmp_path]}
    with override_settings(TEMPLATES=[engine]):
        yield open_in


def in_sight(page: Browser, limit: int = 0) -> list[str]:
    """The fields of a limit that can be seen."""
    return list(
        page.script(
            "const own = `limits-${arguments[0]}-`;"
            "return [...document.querySelectorAll(`[name^=${own}]:not([type=hidden])`)]"
            ".filter(e => e.getClientRects().length).map(e => e.name.slice(own.length))",
            limit,
        )
    )


@pytest.mark.parametrize("layout", ["", "lines"])
def test_shows_what_the_algorithm_uses(open_form: Callable[[str], Browser], layout: str) -> None:
    page = open_form(layout)
    assert in_sight(page) == USED
    page.script("document.querySelector('#id_limits-0-algorithm').focus()")
    page.type("#id_limits-0-algorithm", "token")
    assert in_sight(page) == [*USED, "burst", "refill"]
    page.click("#id_limits-0-unlimited")
    assert in_sight(page) == ["tier", "unlimited"]
    assert page.complaints() == []


@pytest.mark.parametrize("width", [360, 1280, 1600])
def test_the_fields_of_a_limit_stand_in_the_order_of_the_keyboard(
    open_form: Callable[[str], Browser], width: int
) -> None:
    page = open_form("")
    page.resize(width, 900)
    places = page.script(
        "return [...document.querySelectorAll('#limits-0 .form-row')].filter(e => e.getClientRects().length)"
        ".map(e => [e.getBoundingClientRect().top, e.getBoundingClientRect().left])"
    )
    assert len(places) == len(USED)  # the unit stands beside its number, and the sentence has a row
    assert places == sorted(places)
    heights = page.script("return [id_failure_policy, id_path_kind].map(e => e.offsetHeight)")
    assert (heights[0] > heights[1]) is (width == 360)  # a choice that would be cut has two lines


@pytest.mark.parametrize("layout", ["", "lines"])
def test_says_what_is_typed_and_what_is_wrong_with_it(open_form: Callable[[str], Browser], layout: str) -> None:
    page = open_form(layout)
    page.type("#id_limits-0-quota", "5")
    page.type("#id_limits-0-window_seconds", "60")
    page.wait_for(".ratelimiter-sentences:not(:empty)")
    page.type("#id_limits-0-soft_quota", "7")
    page.wait_for_text(".ratelimiter-sentences", "Soft quota: ")
    assert page.complaints() == []


def test_a_limit_that_is_added_is_like_the_first(open_form: Callable[[str], Browser]) -> None:
    page = open_form("")
    # By a script: which views match may arrive just now, and move the link from below the pointer.
    page.script("document.querySelector('#limits-group .add-row a').click()")
    page.wait_for("#id_limits-1-quota")
    assert in_sight(page, 1) == USED
    assert page.complaints() == []


@pytest.mark.parametrize("layout", ["", "lines", "flat"])
def test_says_which_views_match_while_it_is_typed(open_form: Callable[[str], Browser], layout: str) -> None:
    page = open_form(layout)
    page.type("#id_view_name", "hello")
    page.wait_for_text(".ratelimiter-views", "Matches 1 view: hello.")
    page.script("document.querySelector('#id_view_name').value = ''")
    page.type("#id_path", "/items/")
    choose = (
        "const list = document.querySelector('#id_path_kind');"
        "list.value = arguments[0]; list.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.script(choose, "prefix")
    page.wait_for_text(".ratelimiter-views", "Matches 1 view: item.")
    page.script(choose, "route")
    page.wait_for_text(".ratelimiter-views", "Matches no view. No route is “items/”")
    assert page.script("return document.querySelector('#id_path').list.id") == "ratelimiter-routes"
    assert page.complaints() == []


@pytest.mark.parametrize(("width", "language"), [(1280, "en"), (1280, "de"), (1024, "de")])
def test_the_list_has_room_for_long_names_and_all_columns(
    open_form: Callable[[str], Browser], rule: Rule, width: int, language: str
) -> None:
    rule.name, rule.mode = "Uploads of large files by customers in the European region", "off"
    rule.save()
    for slug, quota in (("pro", 1_000), ("enterprise", 100_000)):
        rule.limits.create(tier=Tier.objects.create(slug=slug, name=slug), quota=quota, window_seconds=3_600)
    Rule.objects.create(slug="other", name="Other", owner="file")
    page = open_form("")
    page.resize(width, 800)
    with override_settings(LANGUAGE_CODE=language):
        page.open(page.script("return location.href").replace("add/", ""))
    clipped, height, filters, inside = page.script(
        f"const [list, row, filter] = ['.results', 'tbody tr:has([href*=\"/rule/{rule.pk}/\"])', '#changelist-filter']"
        ".map(each => document.querySelector(each)); return [list.scrollWidth > list.clientWidth,"
        " row.getBoundingClientRect().height, filter.getBoundingClientRect().height,"
        " row.getBoundingClientRect().right <= innerWidth]"
    )
    assert (clipped, inside) == (False, True)
    assert height < (100 if width == 1280 else 150), "a card, with a title above each cell"
    assert filters < 150, "they stand in lines above the list"


def test_hides_nothing_where_no_field_stands_apart(open_form: Callable[[str], Browser]) -> None:
    page = open_form("flat")
    assert in_sight(page) == FIELDS
    page.type("#id_name", "Try")
    page.type("#id_slug", "try")
    page.type("#id_limits-0-quota", "5")
    page.type("#id_limits-0-window_seconds", "60")
    assert in_sight(page) == FIELDS
    # By a script: what the form says of the limit may arrive just now, and move the button from below the pointer.
    page.script("document.querySelector('[name=_save]').click()")
    page.wait_for(".messagelist")
    assert (Rule.objects.get().mode, RuleLimit.objects.get().quota) == ("shadow", 5)
    assert page.complaints() == []
