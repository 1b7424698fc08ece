"""Two who edit one rule at once: nothing is overwritten silently, and one can go on with either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from django_ratelimiter.models import Rule, RuleLimit, RuleSetVersion, Tier
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored.history.changes import NOTHING

from .pages import ADD_RULE, BrowserForm, errors_of, number, page_of, rule_form, shown

pytestmark = pytest.mark.django_db

STOPPED = "Nothing was saved: somebody else has changed this since you opened it."


class Editor:
    """Somebody who has opened the page of a row, and what their browser would send."""

    def __init__(self, name: str, row: Any) -> None:
        self.client = Client()
        self.client.force_login(User.objects.create_superuser(name))
        self.page = page_of(row)
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
    def test_the_second_is_stopped_and_shown_both(self, editors: tuple[Editor, Editor], rule: Rule) -> None:
        ada, bob = editors
        assert ada.save(mode="shadow", change_reason="Only to look.").status_code == 302
        before = number()
        response = bob.save(**{"name": "Exports", "limits-0-quota": "7"})
        page = shown(response)
        assert STOPPED in page
        assert f"Version {before}" in page
        assert "saved by ada" in page
        assert "Only to look." in page
        cells = [(change.label, change.before, change.after) for change in response.context["conflict"]]
        assert cells == [
            ("Name", "Export", "Exports"),
            ("Mode", "shadow", "enforce"),
            ("Limit of free", "100 per minute, sliding window", "7 per minute, sliding window"),
        ]
        assert all(f"<td>{text}</td>" in page for _, *texts in cells for text in texts)
        rule.refresh_from_db()
        assert (number(), rule.name, rule.mode) == (before, "Export", "shadow")
        assert bob.form["name"] == ["Exports"]  # what was typed is still there

    def test_one_can_go_on_with_mine(self, editors: tuple[Editor, Editor], rule: Rule) -> None:
        ada, bob = editors
        ada.save(mode="shadow")
        bob.save(name="Exports")
        assert bob.save().status_code == 302
        rule.refresh_from_db()
        assert (rule.name, rule.mode) == ("Exports", "enforce")

    def test_or_with_theirs(self, editors: tuple[Editor, Editor], rule: Rule) -> None:
        ada, bob = editors
        ada.save(mode="shadow")
        page = shown(bob.save(name="Exports"))
        assert f'<a href="{bob.page}">Keep the saved values and discard mine</a>' in page
        assert BrowserForm(shown(bob.client.get(bob.page))).sent["mode"] == ["shadow"]

    def test_a_third_change_stops_it_again(self, editors: tuple[Editor, Editor]) -> None:
        ada, bob = editors
        ada.save(mode="shadow")
        bob.save(name="Exports")
        Editor("eve", Rule.objects.get()).save(cost="2")
        assert STOPPED in shown(bob.save())
        assert Rule.objects.get().cost == 2

    def test_what_else_is_changed_does_not_stop_it(self, editors: tuple[Editor, Editor]) -> None:
        Rule.objects.create(slug="other", name="Other")
        RuleLimit.objects.update(generation=3)  # counters were reset: no form shows that
        assert editors[0].save(mode="shadow").status_code == 302
        assert set(RuleLimit.objects.values_list("generation", flat=True)) == {3}

    def test_an_error_of_mine_does_not_hide_that_there_is_another(self, editors: tuple[Editor, Editor]) -> None:
        ada, bob = editors
        assert errors_of(bob.save(path="relative"))["path"]
        ada.save(mode="shadow")
        page = shown(bob.save(path="/good/"))
        assert STOPPED in page


class TestLimits:
    def test_mine_are_kept_where_theirs_were_deleted(self, editors: tuple[Editor, Editor], rule: Rule) -> None:
        ada, bob = editors
        assert ada.save(**{"limits-0-DELETE": "on"}).status_code == 302
        assert quotas() == [(None, 5)]
        response = bob.save(**{"limits-0-quota": "7"})
        assert STOPPED in shown(response)
        assert [change.before for change in response.context["conflict"]] == [NOTHING]
        assert bob.save().status_code == 302
        assert quotas() == [(None, 5), ("free", 7)]

    def test_theirs_are_deleted_where_mine_had_none(self, editors: tuple[Editor, Editor]) -> None:
        ada, bob = editors
        new = {"tier": "", "quota": "9", "window_seconds": "3600", "algorithm": "fixed_window"}
        sent = {"limits-TOTAL_FORMS": "3"} | {f"limits-2-{name}": value for name, value in new.items()}
        assert ada.save(**sent).status_code == 302
        assert len(quotas()) == 3
        response = bob.save(name="Exports")
        assert STOPPED in shown(response)
        assert ("9 per hour, fixed window", NOTHING) in [
            (change.before, change.after) for change in response.context["conflict"]
        ]
        saved = bob.save()
        assert saved.status_code == 302
        assert quotas() == [("free", 100), (None, 5)]

    def test_both_added_one(self, editors: tuple[Editor, Editor]) -> None:
        ada, bob = editors
        for editor, quota in ((ada, "9"), (bob, "8")):
            new = {"tier": "", "quota": quota, "window_seconds": "3600", "algorithm": "fixed_window"}
            sent = {"limits-TOTAL_FORMS": "3"} | {f"limits-2-{name}": value for name, value in new.items()}
            response = editor.save(**sent)
        assert STOPPED in shown(response)
        assert bob.save().status_code == 302
        assert quotas() == [("free", 100), (None, 5), (None, 8)]

    def test_a_forged_number_of_forms_is_the_form_sets_matter(
        self, editors: tuple[Editor, Editor], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django.forms.formsets.DEFAULT_MAX_NUM", 10)  # up to 2,000 forms would be made and shown
        ada, bob = editors
        ada.save(mode="shadow")
        for forged in ("x", "-1", "999999999"):
            response = bob.client.post(bob.page, bob.form | {"limits-TOTAL_FORMS": forged})
            assert response.status_code == 200
        assert Rule.objects.get().mode == "shadow"


class TestTier:
    def test_the_second_is_stopped(self, free: Tier) -> None:
        cache.invalidate()
        ada, bob = Editor("ada", free), Editor("bob", free)
        assert ada.save(rank="5", change_reason="x").status_code == 302
        response = bob.save(name="Gratis")
        assert STOPPED in shown(response)
        assert [tuple(change[1:]) for change in response.context["conflict"]] == [
            ("Name", "Free", "Gratis"),
            ("Rank", "5", "1"),
        ]
        assert "saved by ada" in shown(response)
        assert bob.save().status_code == 302
        free.refresh_from_db()
        assert (free.name, free.rank) == ("Gratis", 1)


class TestReason:
    def test_it_is_kept_with_the_version_and_in_the_log(self, editors: tuple[Editor, Editor]) -> None:
        assert editors[0].save(mode="shadow", change_reason=" Too strict. ").status_code == 302
        assert RuleSetVersion.objects.all()[0].reason == "Too strict."
        assert LogEntry.objects.get().change_message == "Changed Mode. Reason: Too strict."

    def test_of_a_new_rule(self, admin_client: Client) -> None:
        sent = rule_form({"quota": 5, "window_seconds": "60"}, change_reason="A new customer.")
        assert admin_client.post(ADD_RULE, sent).status_code == 302
        assert RuleSetVersion.objects.all()[0].reason == "A new customer."

    @pytest.mark.parametrize("reason", ["x" * 256, "a\0b"])
    def test_one_that_cannot_be_stored_is_rejected(self, editors: tuple[Editor, Editor], reason: str) -> None:
        before = number()
        response = editors[0].save(mode="shadow", change_reason=reason)
        assert response.context["adminform"].form.errors["change_reason"]
        assert response.context["adminform"].form.errors["change_reason"][0] in shown(response)
        assert number() == before

    def test_who_may_only_look_is_not_asked(self, operator: Callable[..., Client], rule: Rule, free: Tier) -> None:
        client = operator("view_rule", "view_tier")
        for row in (rule, free):
            assert "change_reason" not in shown(client.get(page_of(row)))

    def test_a_tiers_page_shows_it_once(self, admin_client: Client, free: Tier) -> None:
        page = shown(admin_client.get(page_of(free)))
        assert page.count('name="change_reason"') == page.count('name="seen_digest"') == 1
