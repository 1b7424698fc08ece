"""New rules reject nobody; a rule that would reject everybody asks before it is enforced; and who may enforce rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion

from ..pages import ADD_RULE, RULES, BrowserForm, errors_of, number, page_of, rule_form, shown, stored

pytestmark = pytest.mark.django_db

CONFIRM = "confirm_everybody"

#: What makes a rule one for every request, with one counter that all callers share.
EVERYBODY = {"path_kind": "any", "path": "", "methods": [], "partition_by": []}

LIMIT = {"quota": "3", "window_seconds": "60"}


def everybody(**fields: Any) -> dict[str, Any]:
    """What the browser sends for such a rule, enforced, with a limit."""
    return rule_form(LIMIT, **EVERYBODY | fields)


class TestNewRule:
    def test_a_half_filled_form_rejects_nobody(self, admin_client: Client) -> None:
        """Name, quota and window, and nothing else: what a browser sends then."""
        sent = BrowserForm(admin_client.get(ADD_RULE).content.decode()).sent
        typed = {"name": "Try", "slug": "try", "limits-0-quota": "3", "limits-0-window_seconds": "60"}
        typed |= {"change_reason": "A new customer."}
        assert admin_client.post(ADD_RULE, sent | typed).status_code == 302
        assert Rule.objects.get().mode == "shadow"
        version = RuleSetVersion.objects.get(number=number())
        assert (version.snapshot["rules"][0]["mode"], version.reason) == ("shadow", "A new customer.")
        statuses = [admin_client.get("/hello/").status_code for _ in range(5)]
        assert statuses == [200] * 5

    def test_a_program_makes_the_same(self) -> None:
        assert Rule.objects.create(slug="new", name="New").mode == "shadow"


def test_a_saved_rule_without_limits_warns_that_it_applies_to_nobody(admin_client: Client) -> None:
    assert "This rule has no limits" in shown(admin_client.post(ADD_RULE, rule_form(), follow=True))


class TestForm:
    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"path_kind": "prefix", "path": "/"},
            {"methods": ["GET", "POST"]},
            {"partition_by": [], "partition_by_others": " , "},
        ],
    )
    def test_one_counter_for_every_request_is_not_saved_unasked(
        self, admin_client: Client, fields: dict[str, Any]
    ) -> None:
        before = number()
        response = admin_client.post(ADD_RULE, everybody(**fields))
        assert set(errors_of(response)) == {CONFIRM, "limits"}
        page = shown(response)
        assert f'name="{CONFIRM}"' in page
        assert "all callers share one counter" in page
        assert (number(), Rule.objects.count()) == (before, 0)

    def test_nothing_that_was_typed_is_lost(self, admin_client: Client) -> None:
        given = everybody(description="For\nthe crowd", message="Wait.", cost="2", priority="7", failure_policy="open")
        sent = BrowserForm(admin_client.post(ADD_RULE, given).content.decode()).sent
        assert CONFIRM not in sent
        assert admin_client.post(ADD_RULE, sent | {CONFIRM: "on"}).status_code == 302
        rule = Rule.objects.get()
        assert (rule.mode, rule.description.splitlines(), rule.message) == ("enforce", ["For", "the crowd"], "Wait.")
        assert (rule.cost, rule.priority, rule.failure_policy) == (2, 7, "open")
        assert rule.limits.get().quota == 3

    def test_a_tick_stays_while_something_else_is_wrong(self, admin_client: Client) -> None:
        response = admin_client.post(ADD_RULE, everybody(name="", **{CONFIRM: "on"}))
        assert set(errors_of(response)) == {"name", "limits"}
        assert BrowserForm(response.content.decode()).sent[CONFIRM] == ["on"]

    @pytest.mark.parametrize(
        "fields",
        [
            {"mode": "shadow"},
            {"partition_by": ["ip"]},
            {"partition_by_others": "header:X-Tenant"},
            {"path_kind": "exact", "path": "/"},
            {"view_name": "hello"},
            {"scope": "mail"},
            {"methods": ["POST"]},
        ],
    )
    def test_asks_nothing_of_other_rules(self, admin_client: Client, fields: dict[str, Any]) -> None:
        assert f'name="{CONFIRM}"' not in shown(admin_client.get(ADD_RULE))
        assert admin_client.post(ADD_RULE, everybody(**fields)).status_code == 302

    @pytest.mark.parametrize(
        "before", [{"mode": "shadow"}, {"partition_by": ["ip"]}, {"path_kind": "prefix", "path": "/api/"}]
    )
    def test_an_edit_into_that_state_asks_as_well(
        self, admin_client: Client, rule: Rule, before: dict[str, Any]
    ) -> None:
        Rule.objects.update(**{"mode": "enforce", **EVERYBODY, **before})
        sent = rule_form(*stored(*rule.limits.all()), stored=2, **EVERYBODY)
        assert CONFIRM in errors_of(admin_client.post(page_of(rule), sent))
        assert admin_client.post(page_of(rule), sent | {CONFIRM: "on"}).status_code == 302
        assert admin_client.post(page_of(rule), sent | {"name": "Again"}).status_code == 302  # it is so already
        assert Rule.objects.get().name == "Again"


class TestAction:
    @pytest.fixture
    def rules(self) -> list[Rule]:
        """One that would stop everybody, and one that would not."""
        rules = [Rule.objects.create(slug="all", name="All"), Rule.objects.create(slug="api", name="API", scope="api")]
        for rule in rules:
            RuleLimit.objects.create(rule=rule, quota=3, window_seconds=60)
        return rules

    def test_asks_before_it_enforces(self, admin_client: Client, rules: list[Rule]) -> None:
        before = number()
        sent = {"action": "enforce", "_selected_action": [rule.pk for rule in rules]}
        response = admin_client.post(RULES, sent)
        assert response.status_code == 200
        page = shown(response)
        assert "all callers share one counter" in page
        assert "All" in [str(rule) for rule in response.context["for_everybody"]]
        assert (number(), set(Rule.objects.values_list("mode", flat=True))) == (before, {"shadow"})

        confirmed = BrowserForm(page).sent
        assert admin_client.post(RULES, confirmed).status_code == 302
        assert set(Rule.objects.values_list("mode", flat=True)) == {"enforce"}

    def test_asks_of_all_that_a_list_of_several_pages_selects(self, admin_client: Client, rules: list[Rule]) -> None:
        sent = {"action": "enforce", "_selected_action": [rules[1].pk], "select_across": "1"}
        page = shown(admin_client.post(RULES, sent))
        assert admin_client.post(RULES, BrowserForm(page).sent).status_code == 302
        assert set(Rule.objects.values_list("mode", flat=True)) == {"enforce"}

    @pytest.mark.parametrize(("action", "which"), [("enforce", 1), ("shadow", 0), ("switch_off", 0)])
    def test_asks_nothing_else(self, admin_client: Client, rules: list[Rule], action: str, which: int) -> None:
        sent = {"action": action, "_selected_action": [rules[which].pk]}
        assert admin_client.post(RULES, sent).status_code == 302

    def test_a_rule_that_is_enforced_already_is_not_asked_about(self, admin_client: Client, rules: list[Rule]) -> None:
        Rule.objects.update(mode="enforce")
        sent = {"action": "enforce", "_selected_action": [rule.pk for rule in rules]}
        assert "Nothing changed" in shown(admin_client.post(RULES, sent, follow=True))


NEEDED = "You cannot choose “enforce”"

#: A rule that is not for everybody, so that nothing else is asked.
PLACE: dict[str, Any] = {"path_kind": "prefix", "path": "/api/", "partition_by": ["ip"]}


@pytest.fixture
def draft() -> Rule:
    return Rule.objects.create(slug="draft", name="Draft", mode="shadow", **PLACE)


class TestWhoMayEnforce:
    def test_without_it_the_choice_is_locked_and_says_why(self, operator: Callable[..., Client], draft: Rule) -> None:
        client = operator("view_rule", "change_rule", "add_rule")
        for url in (page_of(draft), ADD_RULE, f"{ADD_RULE}?mode=enforce", f"{ADD_RULE}?slug=login"):
            response = client.get(url)
            mode = response.context["adminform"].form["mode"]
            assert [widget.data["value"] for widget in mode] == ["off", "shadow"]
            assert NEEDED in shown(response)
            assert BrowserForm(response.content.decode()).sent["mode"] == ["shadow"]

    def test_with_it_nothing_is_locked(self, operator: Callable[..., Client], draft: Rule) -> None:
        client = operator("view_rule", "change_rule", "publish_rule")
        assert NEEDED not in shown(client.get(page_of(draft)))
        assert client.post(page_of(draft), rule_form(slug="draft")).status_code == 302
        assert Rule.objects.get().mode == "enforce"

    @pytest.mark.parametrize("mode", ["shadow", "off"])
    def test_a_forged_choice_is_rejected(self, operator: Callable[..., Client], draft: Rule, mode: str) -> None:
        Rule.objects.update(mode=mode)
        before = number()
        client = operator("view_rule", "change_rule", "add_rule")
        for url, slug in ((page_of(draft), "draft"), (ADD_RULE, "new")):
            response = client.post(url, rule_form(slug=slug, mode="enforce"))
            assert NEEDED in response.context["adminform"].form.errors["mode"][0]
        assert (number(), list(Rule.objects.values_list("slug", "mode"))) == (before, [("draft", mode)])

    @pytest.mark.parametrize("mode", ["enforce", "shadow", "off"])
    def test_a_rule_that_is_enforced_can_be_edited_and_be_taken_back(
        self, operator: Callable[..., Client], draft: Rule, mode: str
    ) -> None:
        Rule.objects.update(mode="enforce")
        client = operator("view_rule", "change_rule")
        assert NEEDED not in shown(client.get(page_of(draft)))
        assert client.post(page_of(draft), rule_form(slug="draft", name="New", mode=mode)).status_code == 302
        assert list(Rule.objects.values_list("name", "mode")) == [("New", mode)]


class TestWhoMayUseTheAction:
    @pytest.mark.parametrize(
        ("codenames", "mode"),
        [
            (["change_rule"], "shadow"),
            (["view_rule", "publish_rule"], "shadow"),
            (["change_rule", "publish_rule"], "enforce"),
        ],
    )
    def test_needs_both(self, operator: Callable[..., Client], draft: Rule, codenames: list[str], mode: str) -> None:
        client = operator(*codenames)
        sent = {"action": "enforce", "_selected_action": [draft.pk], "confirm_everybody": "on"}
        client.post(RULES, sent)
        assert Rule.objects.get().mode == mode
        assert ('value="enforce"' in shown(client.get(RULES))) is (mode == "enforce")

    @pytest.mark.parametrize(("action", "mode"), [("shadow", "shadow"), ("switch_off", "off")])
    def test_the_others_need_the_right_to_change_only(
        self, operator: Callable[..., Client], draft: Rule, action: str, mode: str
    ) -> None:
        Rule.objects.update(mode="enforce")
        operator("change_rule").post(RULES, {"action": action, "_selected_action": [draft.pk]})
        assert Rule.objects.get().mode == mode
