"""Who may have rules enforced: that takes a permission of its own, beside the one to change rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_ratelimiter.models import Rule

from ..pages import ADD_RULE, RULES, BrowserForm, number, page_of, rule_form, shown

pytestmark = pytest.mark.django_db

NEEDED = "You cannot choose “enforce”"

#: A rule that is not for everybody, so that nothing else is asked.
PLACE: dict[str, Any] = {"path_kind": "prefix", "path": "/api/", "partition_by": ["ip"]}


@pytest.fixture
def draft() -> Rule:
    return Rule.objects.create(slug="draft", name="Draft", mode="shadow", **PLACE)


class TestForm:
    def test_without_it_the_choice_is_locked_and_says_why(self, operator: Callable[..., Client], draft: Rule) -> None:
        client = operator("view_rule", "change_rule", "add_rule")
        for url in (page_of(draft), ADD_RULE, f"{ADD_RULE}?mode=enforce", f"{ADD_RULE}?preset=login"):
            response = client.get(url)
            mode = response.context["adminform"].form["mode"]
            locked = [widget.data["value"] for widget in mode if widget.data["attrs"].get("disabled")]
            assert locked == ["enforce"]
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

    def test_the_permission_alone_changes_nothing(self, operator: Callable[..., Client], draft: Rule) -> None:
        client = operator("view_rule", "publish_rule")
        assert client.post(page_of(draft), rule_form(slug="draft")).status_code == 403
        assert Rule.objects.get().mode == "shadow"


class TestAction:
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
