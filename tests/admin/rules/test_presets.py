"""The form of a new rule that is filled in, by an example or by another rule."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.test.utils import override_settings
from django.urls import path

from django_ratelimiter.admin.rules.presets import presets
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules.stored.compiler import snapshot_of_rows
from django_ratelimiter.rules.stored.storage import committed_version

from ..pages import ADD_RULE, RULES, BrowserForm, number, page_of, shown

pytestmark = pytest.mark.django_db


def save(client: Client, query: str) -> Rule:
    """Open the form of a new rule with this query, and save what it is filled in with."""
    before = number()
    page = client.get(f"{ADD_RULE}?{query}")
    assert page.status_code == 200
    assert number() == before, "saved by opening a page"
    sent: dict[str, Any] = BrowserForm(page.content.decode()).sent
    response = client.post(ADD_RULE, sent)
    assert response.status_code == 302, response.context["errors"]
    return Rule.objects.latest("pk")


def query_of(slug: str) -> str:
    """The address of an example."""
    return next(each.query for each in presets() if f"slug={slug}&" in each.query)


@pytest.mark.parametrize("slug", ["login", "login-name", "report"])
def test_each_example_can_be_saved_as_it_is(admin_client: Client, slug: str) -> None:
    rule = save(admin_client, query_of(slug))
    assert (rule.slug, rule.mode, rule.limits.count()) == (slug, "shadow", 1)
    assert snapshot_of_rows()["left_out"] == []


def test_the_page_of_a_new_rule_offers_them_all(admin_client: Client) -> None:
    page = shown(admin_client.get(ADD_RULE))
    for preset in presets():
        assert f'<a href="?{preset.query}">{preset.name}</a> {preset.explanation}' in page
    assert "Start from an example" not in shown(admin_client.get(f"{ADD_RULE}?{query_of('login')}"))


def test_a_list_without_rules_offers_them_to_those_who_may_add(
    admin_client: Client, operator: Callable[..., Client]
) -> None:
    link = f'<a href="{ADD_RULE}?{query_of("login-name")}">Login attempts by user name</a>'
    assert link in shown(admin_client.get(RULES))
    assert link in shown(admin_client.get(RULES, {"q": "log"}))
    assert link not in shown(operator("view_rule").get(RULES))
    save(admin_client, query_of("login"))
    assert link not in shown(admin_client.get(RULES))
    assert link not in shown(admin_client.get(RULES, {"q": "none has this"}))


def test_a_login_shows_outside_the_expert_options_that_only_failures_are_charged(admin_client: Client) -> None:
    for key in ("login", "login-name"):
        page = shown(admin_client.get(f"{ADD_RULE}?{query_of(key)}"))
        assert '<option value="failure" selected>' in page.split("<details>")[0]


def test_a_login_is_found_by_the_name_of_its_view(admin_client: Client) -> None:
    urls: Any = ModuleType("urls")
    urls.urlpatterns = [path("admin/", admin.site.urls), path("in/", lambda _: None, name="account_login")]
    with override_settings(ROOT_URLCONF=urls):
        rule = save(admin_client, query_of("login"))
        assert (rule.path_kind, rule.path, rule.view_name) == ("any", "", "account_login")
        assert "Matches 1 view: account_login." in shown(admin_client.get(f"{ADD_RULE}?{query_of('login')}"))
        wrong = admin_client.post(ADD_RULE, {"path_kind": "exact", "path": "/in/"})
        assert "Matches 1 view: account_login." in shown(wrong)


class TestCopy:
    def test_copies_everything_but_what_is_its_own(self, admin_client: Client, rule: Rule) -> None:
        Rule.objects.update(methods=["POST"], partition_by=["user", "header:X-A"], cost=2, message="Wait.", priority=7)
        RuleLimit.objects.update(generation=3)
        rule.limits.create(unlimited=True, tier=Tier.objects.create(slug="pro", name="Pro", rank=2))
        copy = save(admin_client, f"copy={rule.pk}")
        own = {"id", "slug", "name", "mode"}
        same = [Rule.objects.filter(pk=pk).values().get() for pk in (rule.pk, copy.pk)]
        assert [{k: v for k, v in row.items() if k not in own} for row in same] == [
            {k: v for k, v in same[0].items() if k not in own}
        ] * 2
        assert (copy.slug, copy.name, copy.mode) == ("export-copy", "Export (copy)", "shadow")
        assert Rule.objects.get(pk=rule.pk).mode == "enforce"
        columns = ("tier", "algorithm", "quota", "window_seconds", "unlimited")
        assert list(copy.limits.values_list(*columns)) == list(rule.limits.values_list(*columns))
        assert set(copy.limits.values_list("generation", flat=True)) == {committed_version().number}

    def test_the_rules_page_offers_it_to_those_who_may_add(self, operator: Callable[..., Client], rule: Rule) -> None:
        link = f"{ADD_RULE}?copy={rule.pk}"
        client = operator("view_rule")
        assert link not in shown(client.get(page_of(rule)))
        assert client.get(link).status_code == 403

    def test_without_the_right_to_limits_they_are_not_copied(self, operator: Callable[..., Client], rule: Rule) -> None:
        client = operator("view_rule", "add_rule")
        link = f"{ADD_RULE}?copy={rule.pk}"
        assert link in shown(client.get(page_of(rule)))
        assert "limits-0-quota" not in shown(client.get(link))

    def test_a_rule_that_may_not_be_seen(self, operator: Callable[..., Client], rule: Rule) -> None:
        client = operator("add_rule")
        statuses = {client.get(f"{ADD_RULE}?copy={pk}").status_code for pk in (rule.pk, 999)}
        assert statuses == {403}

    @pytest.mark.parametrize("pk", ["999", "x", "-1", "1%00"])
    def test_a_rule_that_is_not_there(self, admin_client: Client, pk: str) -> None:
        assert admin_client.get(f"{ADD_RULE}?copy={pk}").status_code == 404
