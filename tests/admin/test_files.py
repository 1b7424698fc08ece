"""Rules files in the admin: rules of a file are read-only, and all rules can be downloaded."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier

from ..making import make_rule
from .pages import RULES, page_of, rule_form, shown

pytestmark = pytest.mark.django_db

DOWNLOAD = reverse("admin:django_ratelimiter_rules_download")
FILE = """\
rules:
  theirs:
    name: Theirs
    mode: enforce
    limits:
      - {quota: 7, window_seconds: 60}
"""


@pytest.fixture
def theirs() -> Rule:
    """A rule of a file."""
    return make_rule("theirs", 5, name="Theirs", owner="file")


class TestOwner:
    def test_a_rule_of_a_file_is_read_only(self, admin_client: Client, theirs: Rule) -> None:
        response = admin_client.get(page_of(theirs))
        assert "This rule belongs to a file. Change it there;" in shown(response)
        assert "_save" not in shown(response)
        assert admin_client.post(page_of(theirs), rule_form(slug="theirs")).status_code == 403
        assert admin_client.post(page_of(theirs, "delete"), {"post": "yes"}).status_code == 403
        assert Rule.objects.get().name == "Theirs"

    def test_actions_leave_it_as_it_is_but_reset_its_counters(self, admin_client: Client, theirs: Rule) -> None:
        ours = Rule.objects.create(slug="ours", name="Ours", mode="enforce")
        chosen = {"_selected_action": [theirs.pk, ours.pk]}
        response = admin_client.post(RULES, {"action": "shadow", **chosen}, follow=True)
        assert "Rules of a file stay as they are: theirs." in shown(response)
        assert dict(Rule.objects.values_list("slug", "mode")) == {"theirs": "enforce", "ours": "shadow"}
        page = shown(admin_client.post(RULES, {"action": "delete_selected", **chosen}))
        assert "Rules of a file stay as they are: theirs." in page
        admin_client.post(RULES, {"action": "delete_selected", "post": "yes", **chosen})
        assert Rule.objects.count() == 2
        admin_client.post(RULES, {"action": "forget", **chosen})
        assert RuleLimit.objects.get().generation == 1

    def test_a_tier_stays_as_long_as_a_locked_rule_has_limits_for_it(self, admin_client: Client, theirs: Rule) -> None:
        tier = Tier.objects.create(slug="pro", name="Pro")
        limit = RuleLimit.objects.create(rule=theirs, tier=tier, quota=9, window_seconds=60)
        response = admin_client.get(page_of(tier, "delete"))
        assert str(limit) in shown(response)
        assert 'type="submit"' not in shown(response).split('id="content"')[1]
        admin_client.post(page_of(tier, "delete"), {"post": "yes"})
        chosen = {"action": "delete_selected", "post": "yes", "_selected_action": [tier.pk]}
        admin_client.post(reverse("admin:django_ratelimiter_tier_changelist"), chosen)
        assert Tier.objects.exists()
        assert theirs.limits.count() == 2
        Rule.objects.update(owner="admin")
        assert admin_client.post(page_of(tier, "delete"), {"post": "yes"}).status_code == 302
        assert not Tier.objects.exists()

    def test_the_list_says_to_whom_a_rule_belongs(self, admin_client: Client, theirs: Rule) -> None:
        Rule.objects.create(slug="ours", name="Ours")
        assert shown(admin_client.get(RULES)).count('class="ratelimiter-owner">a file<') == 1
        assert shown(admin_client.get(f"{RULES}?owner=file")).count('name="_selected_action"') == 1

    def test_form_opened_before_the_file_was_applied_saves_nothing(self, admin_client: Client, theirs: Rule) -> None:
        limit = {"id": RuleLimit.objects.get().pk, "rule": theirs.pk, "quota": 9, "window_seconds": 60}
        sent = rule_form(limit, stored=1, slug="theirs", name="Typed", seen_digest="from before")
        assert admin_client.post(page_of(theirs), sent).status_code == 403
        assert (Rule.objects.get().name, RuleLimit.objects.get().quota) == ("Theirs", 5)

    def test_a_copy_of_it_is_the_admins(self, admin_client: Client, theirs: Rule) -> None:
        added = reverse("admin:django_ratelimiter_rule_add")
        assert admin_client.get(f"{added}?copy={theirs.pk}").status_code == 200
        admin_client.post(added, rule_form({"quota": 1, "window_seconds": 1}, slug="copy"))
        assert Rule.objects.get(slug="copy").owner == "admin"


def test_the_download_is_a_file_without_callers(admin_client: Client, theirs: Rule) -> None:
    AccessEntry.objects.create(kind="ip", value="192.0.2.7")
    response = admin_client.get(DOWNLOAD)
    assert response["Content-Disposition"] == 'attachment; filename="ratelimits.yaml"'
    assert "theirs:" in shown(response)
    assert "192.0.2.7" not in shown(response)
    assert shown(response).endswith("\n# end: 1 rule\n")
