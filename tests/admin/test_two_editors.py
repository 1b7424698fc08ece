"""Two who edit one rule at once: the second save is refused, nothing is overwritten, and no input is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion, Tier
from django_ratelimiter.rules import cache

from .pages import BrowserForm, errors_of, number, page_of, shown

pytestmark = pytest.mark.django_db

REFUSED = "so nothing was saved now. What you typed is still here."


class Editor:
    """Somebody who has opened the page of a row, and what their browser would send."""

    def __init__(self, name: str, row: Any) -> None:
        self.client = Client()
        self.client.force_login(User.objects.create_superuser(name))
        self.page = page_of(row)
        self.open()

    def open(self) -> None:
        self.form = BrowserForm(shown(self.client.get(self.page))).sent

    def save(self, **typed: Any) -> Any:
        response = self.client.post(self.page, self.form | typed)
        if response.status_code == 200:
            self.form = BrowserForm(shown(response)).sent
        return response


@pytest.fixture
def editors(rule: Rule) -> tuple[Editor, Editor]:
    cache.invalidate()
    return Editor("ada", rule), Editor("bob", rule)


def quotas() -> list[tuple[str | None, int | None]]:
    return [(limit.tier and limit.tier.slug, limit.quota) for limit in RuleLimit.objects.order_by("pk")]


class TestRule:
    def test_second_save_is_refused_until_the_page_is_loaded_again(
        self, editors: tuple[Editor, Editor], rule: Rule
    ) -> None:
        ada, bob = editors
        assert ada.save(mode="shadow").status_code == 302
        before = number()
        for _attempt in range(2):
            page = shown(bob.save(**{"name": "Exports", "limits-0-quota": "7"}))
            assert f"This was saved less than a minute ago, by ada, {REFUSED}" in page
            assert '<a href="">Load it again, without what you typed</a>' in page
            rule.refresh_from_db()
            assert (number(), rule.name, rule.mode, quotas()[0]) == (before, "Export", "shadow", ("free", 100))
            assert (bob.form["name"], bob.form["limits-0-quota"]) == (["Exports"], ["7"])
        bob.open()
        assert bob.form["mode"] == ["shadow"]
        assert bob.save(name="Exports").status_code == 302
        rule.refresh_from_db()
        assert (rule.name, rule.mode) == ("Exports", "shadow")

    def test_change_without_a_version_refuses_the_save_too(self, editors: tuple[Editor, Editor]) -> None:
        Rule.objects.update(mode="shadow")
        RuleSetVersion.objects.all().delete()
        assert f"This was saved meanwhile, {REFUSED}" in shown(editors[1].save(name="Exports"))
        assert Rule.objects.get().name == "Export"

    def test_changes_elsewhere_and_resets_of_counters_do_not_refuse_it(self, editors: tuple[Editor, Editor]) -> None:
        Rule.objects.create(slug="other", name="Other")
        RuleLimit.objects.update(generation=3)  # counters were reset: no form shows that
        assert editors[0].save(mode="shadow").status_code == 302
        assert set(RuleLimit.objects.values_list("generation", flat=True)) == {3}

    def test_invalid_input_does_not_hide_that_the_save_is_refused(self, editors: tuple[Editor, Editor]) -> None:
        ada, bob = editors
        assert errors_of(bob.save(path="relative"))["path"]
        ada.save(mode="shadow")
        assert REFUSED in shown(bob.save(path="/good/"))


class TestLimits:
    def test_input_for_a_deleted_limit_is_shown_again(self, editors: tuple[Editor, Editor], rule: Rule) -> None:
        ada, bob = editors
        assert ada.save(**{"limits-0-DELETE": "on"}).status_code == 302
        for _attempt in range(2):
            assert REFUSED in shown(bob.save(**{"limits-0-quota": "6"} if _attempt == 0 else {}))
            assert quotas() == [(None, 5)]
            assert [bob.form[f"limits-{place}-quota"] for place in range(2)] == [["6"], ["5"]]

    def test_limit_of_somebody_else_is_not_deleted(self, editors: tuple[Editor, Editor]) -> None:
        for editor, quota in zip(editors, ("9", "8"), strict=True):
            new = {"tier": "", "quota": quota, "window_seconds": "3600", "algorithm": "fixed_window"}
            sent = {"limits-TOTAL_FORMS": "3"} | {f"limits-2-{name}": value for name, value in new.items()}
            response = editor.save(**sent)
        assert REFUSED in shown(response)
        assert quotas() == [("free", 100), (None, 5), (None, 9)]
        assert editors[1].form["limits-2-quota"] == ["8"]


def test_second_save_of_a_tier_is_refused(free: Tier) -> None:
    cache.invalidate()
    ada, bob = Editor("ada", free), Editor("bob", free)
    assert ada.save(rank="5", change_reason="x").status_code == 302
    assert f", by ada, {REFUSED}" in shown(bob.save(name="Gratis"))
    assert bob.form["name"] == ["Gratis"]
    free.refresh_from_db()
    assert (free.name, free.rank) == ("Free", 5)


class TestReason:
    def test_it_is_kept_with_the_version(self, editors: tuple[Editor, Editor]) -> None:
        assert editors[0].save(mode="shadow", change_reason=" Too strict. ").status_code == 302
        assert RuleSetVersion.objects.all()[0].reason == "Too strict."

    def test_who_may_only_look_is_not_asked(self, operator: Callable[..., Client], rule: Rule, free: Tier) -> None:
        client = operator("view_rule", "view_tier")
        for row in (rule, free):
            assert "change_reason" not in shown(client.get(page_of(row)))

    def test_a_tiers_page_shows_it_once(self, admin_client: Client, free: Tier) -> None:
        page = shown(admin_client.get(page_of(free)))
        assert page.count('name="change_reason"') == page.count('name="seen_digest"') == 1
