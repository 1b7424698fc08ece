"""Rules files in the admin: who owns a rule, unlocking one, download, and upload with a preview."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, RuleSetVersion, Tier
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.files.applying import apply_file
from django_ratelimiter.rules.files.reading import read

from ..pages import RULES, number, page_of, rule_form, shown

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:django_ratelimiter_rules_file")
DOWNLOAD = reverse("admin:django_ratelimiter_rules_download")
MAY_UPLOAD = ("view_rule", "change_rule", "publish_rule")
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
    with cache.editing():
        rule = Rule.objects.create(slug="theirs", name="Theirs", mode="enforce", owner="file")
        RuleLimit.objects.create(rule=rule, quota=5, window_seconds=60)
    return rule


def unlock_page(rule: Rule) -> str:
    return reverse("admin:django_ratelimiter_rule_unlock", args=[rule.pk])


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
        Rule.objects.update(owner="unlocked")
        assert admin_client.post(page_of(tier, "delete"), {"post": "yes"}).status_code == 302
        assert not Tier.objects.exists()

    def test_the_list_says_to_whom_a_rule_belongs(self, admin_client: Client, theirs: Rule) -> None:
        Rule.objects.create(slug="ours", name="Ours")
        assert shown(admin_client.get(RULES)).count('class="ratelimiter-owner">a file<') == 1
        assert shown(admin_client.get(f"{RULES}?owner=file")).count('name="_selected_action"') == 1

    def test_it_is_unlocked_for_a_reason(self, operator: Callable[..., Client], theirs: Rule) -> None:
        client = operator(*MAY_UPLOAD, "view_rulelimit", "change_rulelimit")
        assert "Unlock it to edit it here" in shown(client.get(page_of(theirs)))
        assert client.post(unlock_page(theirs), {"reason": ""}).status_code == 200
        assert Rule.objects.get().owner == "file"
        before = number()
        text = shown(client.get(unlock_page(theirs)))
        assert "While it differs from its file, applying the file fails and changes nothing" in text
        assert client.post(unlock_page(theirs), {"reason": "An attack"}).status_code == 302
        assert (Rule.objects.get().owner, number()) == ("unlocked", before + 1)
        text = shown(client.get(page_of(theirs)))
        assert "Its file undoes a change only with --overwrite, or with a plan that has shown it." in text
        assert "applying the file fails until the file has them, too." in text
        assert RuleSetVersion.objects.latest("number").reason == "An attack"
        assert LogEntry.objects.get().change_message == "Unlocked. Reason: An attack"
        limit = {"id": RuleLimit.objects.get().pk, "rule": theirs.pk, "quota": 9, "window_seconds": 60}
        assert client.post(page_of(theirs), rule_form(limit, stored=1, slug="theirs")).status_code == 302
        assert (RuleLimit.objects.get().quota, Rule.objects.get().owner) == (9, "unlocked")
        assert client.get(unlock_page(theirs)).status_code == 302

    def test_what_was_typed_is_not_lost_when_the_file_is_applied_meanwhile(
        self, admin_client: Client, theirs: Rule
    ) -> None:
        Rule.objects.update(owner="unlocked")
        seen = admin_client.get(page_of(theirs)).context["adminform"].form["seen_digest"].value()
        limit = {"id": RuleLimit.objects.get().pk, "rule": theirs.pk, "quota": 9, "window_seconds": 60}
        sent = rule_form(limit, stored=1, slug="theirs", name="Typed", seen_digest=seen)
        apply_file(read(FILE, "r.yaml"))
        for _attempt in range(2):
            response = admin_client.post(page_of(theirs), sent)
            assert response.status_code == 200
            assert "so nothing was saved now. What you typed is still here." in shown(response)
            form = response.context["adminform"].form
            sent |= {"seen_digest": form["seen_digest"].value()}
            assert form["name"].value() == "Typed"
            assert Rule.objects.get().name == "Theirs"
            assert RuleLimit.objects.get().quota == 7

    def test_who_may_not_publish_may_not_unlock(self, operator: Callable[..., Client], theirs: Rule) -> None:
        client = operator("view_rule", "change_rule")
        assert "Unlock it" not in shown(client.get(page_of(theirs)))
        assert client.post(unlock_page(theirs), {"reason": "x"}).status_code == 403
        assert client.get(reverse("admin:django_ratelimiter_rule_unlock", args=[0])).status_code == 403

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
    assert admin_client.get(f"{DOWNLOAD}?format=json").json()["rules"].keys() == {"theirs"}


class TestUpload:
    def test_it_shows_the_plan_and_applies_it_once_it_is_confirmed(
        self, admin_client: Client, theirs: Rule, django_capture_on_commit_callbacks: Any
    ) -> None:
        before = number()
        response = upload(admin_client, FILE)
        assert "Plan: 0 to add, 1 to change, 0 to delete." in shown(response)
        assert "<del>5 per minute, sliding window</del>" in shown(response)
        assert number() == before
        sent = response.context["form"].initial
        assert admin_client.post(PAGE, {**sent, "reason": ""}).status_code == 200
        assert number() == before
        with django_capture_on_commit_callbacks(execute=False):
            response = admin_client.post(PAGE, {**sent, "reason": "More room"}, follow=True)
        assert f"The file r.yaml was applied, as version {before + 1}." in shown(response)
        assert RuleLimit.objects.get().quota == 7
        row = RuleSetVersion.objects.latest("number")
        assert (row.author.get_username(), row.reason, row.source) == ("admin", "More room", "r.yaml")
        assert "Reason: More room" in LogEntry.objects.get().change_message
        assert "No changes." in shown(upload(admin_client, FILE))

    def test_the_plan_is_shown_again_if_somebody_has_changed_the_rules(
        self, admin_client: Client, theirs: Rule
    ) -> None:
        sent = upload(admin_client, FILE).context["form"].initial
        RuleLimit.objects.update(quota=6)
        cache.invalidate()
        response = admin_client.post(PAGE, {**sent, "reason": "x"})
        assert "The database has changed since the plan was made." in shown(response)
        assert "<del>6 per minute, sliding window</del>" in shown(response)
        again = response.context["form"]
        assert admin_client.post(PAGE, {name: again[name].value() for name in (*sent, "reason")}).status_code == 302
        assert RuleLimit.objects.get().quota == 7

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("rules:\n  a: {cost: 0}\n", "r.yaml:2:13: cost: "),
            ("rules:\n  a: {view_name: nowhere}\n", "r.yaml:2:18: No view has the name"),
            ("rules: [", "r.yaml:1:9: Not YAML"),
            ("x" * 250_001, "The file is larger than 250 kB."),
        ],
    )
    def test_faults_are_named_with_their_places(self, admin_client: Client, text: str, fault: str) -> None:
        assert fault in shown(upload(admin_client, text))
        assert not Rule.objects.exists()

    def test_what_may_be_right_is_warned_of(self, admin_client: Client) -> None:
        page = shown(upload(admin_client, "rules:\n  a: {mode: enforce}\n"))
        assert "This rule has no limits, so it applies to nobody yet." in page
        assert "Apply this file" in page

    def test_it_takes_the_permissions_for_what_it_changes(self, operator: Callable[..., Client], theirs: Rule) -> None:
        client = operator(*MAY_UPLOAD)
        response = upload(client, FILE.replace("theirs", "ours").replace("Theirs", "Ours"))
        assert "You cannot apply it." in shown(response)
        assert "Can delete rule" in shown(response)
        sent = {**response.context["form"].initial, "reason": "x"}
        assert client.post(PAGE, sent).status_code == 403
        assert Rule.objects.get().slug == "theirs"

    def test_nobody_learns_of_access_entries_that_they_may_not_see(
        self, operator: Callable[..., Client], theirs: Rule
    ) -> None:
        AccessEntry.objects.create(kind="ip", value="192.0.2.7", action="deny", reason="Threatened us")
        access = "access:\n  - {kind: ip, value: 192.0.2.7, action: allow}\n"
        fault = "r.yaml:8:5: You may not see access entries."
        client = operator(*MAY_UPLOAD, "add_accessentry")
        response = upload(client, FILE + access)
        assert fault in shown(response)
        assert "Threatened us" not in shown(response)
        assert "ratelimiter-apply" not in shown(response)
        response = client.post(PAGE, {"text": FILE + access, "name": "r.yaml", "expected": "x", "reason": "x"})
        assert "You may not see access entries." in shown(response)
        assert "Threatened us" not in shown(response)
        assert "Plan: 0 to add, 1 to change" in shown(upload(client, FILE))
        User.objects.get().user_permissions.add(Permission.objects.get(codename="view_accessentry"))
        response = upload(client, FILE + access)
        assert "Threatened us" in shown(response)
        assert "Can change access entry" in shown(response)

    def test_a_file_in_another_encoding_is_named_with_its_place(self, admin_client: Client) -> None:
        for data, fault in (
            (FILE.encode("utf-16"), "r.yaml:1:1: This is UTF-16."),
            (b"rules:\n  caf\xe9: {}", "r.yaml:2:6: Not UTF-8."),
        ):
            assert fault in shown(admin_client.post(PAGE, {"file": SimpleUploadedFile("r.yaml", data)}))

    def test_who_may_not_publish_sees_no_form(self, operator: Callable[..., Client]) -> None:
        client = operator("view_rule", "change_rule")
        assert "You cannot upload a file" in shown(client.get(PAGE))
        assert upload(client, FILE).status_code == 403


def upload(client: Client, text: str) -> Any:
    return client.post(PAGE, {"file": SimpleUploadedFile("r.yaml", text.encode())})
