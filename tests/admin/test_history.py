"""The pages of the history: what they show and to whom, what bringing back a version does, and where it is offered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.models import Rule, RuleSetVersion
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.stored import storage

from ..making import save
from .pages import RULES, BrowserForm, number, page_of, shown, text_of

pytestmark = pytest.mark.django_db

HISTORY = reverse("admin:django_ratelimiter_history")
ALL = ("view_rule", "change_rule", "change_rulelimit", "publish_rule")


def version_page(version: int | str, kind: str = "version") -> str:
    """The address of a page about a version: of this key, or of the latest with this number."""
    if isinstance(version, int):
        version = version_key(RuleSetVersion.objects.filter(number=version)[0])
    return reverse(f"admin:django_ratelimiter_history_{kind}", args=[version])


@pytest.fixture
def good(rule: Rule) -> int:
    """The number of a version, after which two bad ones came."""
    ada = User.objects.create_user("ada")
    cache.invalidate()
    good = number()
    with cache.editing(ada, "rule export saved", "Too many complaints."):
        save(rule, mode="off")
    with cache.editing(ada, "rule export saved"):
        limit = rule.limits.get(quota=100)
        save(limit, quota=1)
    return good


def version_key(version: Any) -> str:
    return f"{version.number}-{version.epoch}"


def seen() -> str:
    """What the page says of the version that it was opened at."""
    return version_key(storage.committed_version())


class TestList:
    def test_says_when_who_why_and_what(self, admin_client: Client, good: int) -> None:
        page, epoch = shown(admin_client.get(HISTORY)), storage.committed_version().epoch
        assert "Rule “Export”: Mode: enforce → off" in page
        assert "Limit of free: 100 per minute, sliding window → 1 per minute, sliding window" in page
        assert "Reason: Too many complaints." in page
        assert "ada" in page
        assert f'href="{version_page(f"{good}-{epoch}", "bring_back")}"' in page
        assert f'href="{version_page(f"{good + 2}-{epoch}", "bring_back")}"' not in page  # it is the latest
        assert f'href="{HISTORY}"' in shown(admin_client.get(RULES))

    def test_is_empty_at_first(self, admin_client: Client) -> None:
        assert "No version is stored yet." in shown(admin_client.get(HISTORY))

    def test_has_pages(self, admin_client: Client, rule: Rule) -> None:
        for _ in range(25):
            cache.invalidate()
        page = shown(admin_client.get(f"{HISTORY}?p=2"))
        assert 'rel="prev" href="?p=1"' in page
        assert "The oldest stored version." in page
        for wrong in ("x", "999%00", "-1"):
            assert admin_client.get(f"{HISTORY}?p={wrong}").status_code == 200


class TestVersion:
    def test_shows_each_field_from_what_to_what(self, admin_client: Client, good: int) -> None:
        page = shown(admin_client.get(version_page(good + 1)))
        assert "<del>enforce</del>" in page
        assert "<ins>off</ins>" in page
        assert "Too many complaints." in page
        assert "Bring back this version" in page
        assert "Bring back this version" not in shown(admin_client.get(version_page(good + 2)))
        assert "oldest stored version" in shown(admin_client.get(version_page(good)))

    def test_what_is_no_version_is_not_found(self, admin_client: Client, good: int) -> None:
        for key in ("999", "x", "0", "9" * 19, "-1", f"{good}-1", "1-2-3"):
            assert admin_client.get(version_page(key)).status_code == 404
            assert admin_client.get(version_page(key, "bring_back")).status_code == 404

    def test_of_two_with_one_number_each_has_an_address(self, admin_client: Client, good: int) -> None:
        stored = RuleSetVersion.objects.get(number=good)
        RuleSetVersion.objects.create(
            number=good, epoch=stored.epoch - 5, snapshot=stored.snapshot, summary="of a former life"
        )
        page = shown(admin_client.get(HISTORY))
        assert f'href="{version_page(f"{good}-{stored.epoch - 5}")}"' in page
        assert "of a former life" in shown(admin_client.get(version_page(f"{good}-{stored.epoch - 5}")))
        assert "of a former life" not in shown(admin_client.get(version_page(good)))


class TestRule:
    def test_its_own_history_says_from_what_to_what(self, admin_client: Client, rule: Rule, good: int) -> None:
        with cache.editing(summary="another"):
            Rule.objects.create(slug="other", name="Other")
        page = shown(admin_client.get(page_of(rule, "history")))
        assert page.index("<del>100 per minute, sliding window</del>") < page.index("<ins>off</ins>")
        assert "Too many complaints." in page
        assert f">Version {good + 3}<" not in page

    def test_follows_a_new_slug_which_was_not_deleted_then(self, admin_client: Client, rule: Rule, good: int) -> None:
        with cache.editing():
            save(rule, slug="renamed")
        page = shown(admin_client.get(page_of(rule, "history")))
        assert "<del>export</del>" in page
        assert "<ins>off</ins>" in page
        with cache.editing():
            later = Rule.objects.create(slug="export", name="Another")
        page = shown(admin_client.get(page_of(later, "history")))
        assert "<ins>renamed</ins>" in page
        assert "<del>enforce</del>" in page

    def test_goes_on_where_it_has_looked(self, admin_client: Client, rule: Rule, good: int) -> None:
        for _ in range(40):
            cache.invalidate()
        page = shown(admin_client.get(page_of(rule, "history")))
        assert "None of the versions that were searched" in page
        (address,) = [part.split('"')[0] for part in page.split('href="')[1:] if part.startswith("?until=")]
        assert "<ins>off</ins>" in shown(admin_client.get(page_of(rule, "history") + address))
        for wrong in ("1", "x", "1-%00"):
            assert admin_client.get(page_of(rule, "history"), {"until": wrong}).status_code == 404


class TestPermissions:
    @pytest.mark.parametrize("lacking", ALL[1:])
    def test_bringing_back_takes_each_permission(
        self, operator: Callable[..., Client], good: int, lacking: str
    ) -> None:
        client = operator(*(set(ALL) - {lacking}))
        back = version_page(good, "bring_back")
        response = client.get(back)
        assert response.status_code == (403 if lacking == "publish_rule" else 200)
        if lacking != "publish_rule":
            assert "You cannot bring it back." in shown(response)
            assert 'name="reason"' not in shown(response)
        before = number()
        assert client.post(back, {"reason": "x", "seen": seen()}).status_code == 403
        assert number() == before

    def test_all_of_them_are_enough(self, operator: Callable[..., Client], rule: Rule, good: int) -> None:
        client = operator(*ALL)
        assert client.post(version_page(good, "bring_back"), {"reason": "x", "seen": seen()}).status_code == 302
        rule.refresh_from_db()
        assert rule.mode == "enforce"


class TestBringBack:
    def test_shows_the_changes_first_and_then_makes_them(self, admin_client: Client, rule: Rule, good: int) -> None:
        back = version_page(good, "bring_back")
        response = admin_client.get(back)
        page = shown(response)
        assert f"Bring back version {good}?" in page
        assert "<del>off</del>" in page
        assert "<ins>enforce</ins>" in page
        assert "<ins>100 per minute, sliding window</ins>" in page
        assert number() == good + 2  # looking changes nothing

        sent = BrowserForm(page).sent | {"reason": "It rejected everybody."}
        response = admin_client.post(back, sent, follow=True)
        assert response.redirect_chain == [(HISTORY, 302)]
        assert f"The rules of version {good} were brought back, as version {good + 3}." in shown(response)
        rule.refresh_from_db()
        assert (rule.mode, rule.limits.get(tier__slug="free").quota) == ("enforce", 100)
        stored = RuleSetVersion.objects.all()[0]
        assert (stored.number, stored.reason, str(stored.author)) == (good + 3, "It rejected everybody.", "admin")
        assert stored.summary == f"rules brought back from version {good}"
        entry = LogEntry.objects.get()
        assert "It rejected everybody." in entry.change_message
        assert str(entry.user) == "admin"
        assert str(good + 3) in entry.object_repr

    def test_takes_a_reason(self, admin_client: Client, good: int) -> None:
        for reason in ("", "  ", "x" * 256, "a\0b", "a\x1b"):
            response = admin_client.post(version_page(good, "bring_back"), {"reason": reason, "seen": seen()})
            assert response.status_code == 200
            assert response.context["form"].errors["reason"]
        assert number() == good + 2

    def test_a_repeated_post_does_it_once(self, admin_client: Client, good: int) -> None:
        sent = {"reason": "x", "seen": seen()}
        for says in ("were brought back", "are those of version"):
            assert says in shown(admin_client.post(version_page(good, "bring_back"), sent, follow=True))
        assert number() == good + 3
        assert LogEntry.objects.count() == 1

    def test_a_change_since_stops_it_and_shows_the_changes_again(
        self, admin_client: Client, rule: Rule, good: int
    ) -> None:
        sent = BrowserForm(shown(admin_client.get(version_page(good, "bring_back")))).sent | {"reason": "x"}
        with cache.editing():
            Rule.objects.create(slug="new", name="New")
        response = admin_client.post(version_page(good, "bring_back"), sent)
        assert "The rules have been changed since you opened this page." in shown(response)
        assert "Rules that did not exist then are deleted: new." in shown(response)
        assert (number(), Rule.objects.count()) == (good + 3, 2)
        again = BrowserForm(shown(response)).sent
        assert again["reason"] == ["x"]
        assert admin_client.post(version_page(good, "bring_back"), again).status_code == 302
        assert Rule.objects.get() == rule

    @pytest.mark.parametrize("forged", ["", "1", "x", "1-1", "9" * 19 + "-1"])
    def test_a_forged_form_changes_nothing(self, admin_client: Client, good: int, forged: str) -> None:
        response = admin_client.post(version_page(good, "bring_back"), {"reason": "x", "seen": forged})
        assert response.status_code in (200, 404)
        assert number() == good + 2

    def test_the_latest_is_nothing_to_bring_back(self, admin_client: Client, good: int) -> None:
        page = shown(admin_client.get(version_page(good + 2, "bring_back")))
        assert "There is nothing to bring back." in page
        assert 'name="reason"' not in page


OVERVIEW = reverse("admin:app_list", args=["django_ratelimiter"])


def back(version: int) -> str:
    """The address of the page that asks whether to bring back a version."""
    return version_page(version, "bring_back")


def offer(version: int) -> str:
    return f'<a href="{back(version)}">Bring back version {version}, the one before</a>'


@pytest.fixture
def sound(rule: Rule) -> int:
    """The number of the version that a bad one came after."""
    cache.invalidate()
    sound = number()
    with cache.editing(User.objects.create_user("ada"), "rule export saved", "Nobody needs it."):
        Rule.objects.update(mode="off")
    return sound


def test_bringing_back_is_offered_where_the_operator_is(admin_client: Client, rule: Rule, sound: int) -> None:
    change = "changed less than a minute ago, by ada. Rule “Export”: Mode: enforce → off"
    for page, says in (
        (OVERVIEW, ", by ada What rule export saved Why Nobody needs it."),
        (RULES, f"The rules {change}"),
        (page_of(rule), f"This rule {change}"),
    ):
        response = admin_client.get(page)
        assert offer(sound) in shown(response), page
        assert says in text_of(response), page
    for page in (page_of(rule, "history"), reverse("admin:django_ratelimiter_history_version", args=[seen()])):
        assert f"Bring back version {sound}, the one before" in text_of(admin_client.get(page)), page
    assert number() == sound + 1  # nothing of that has changed anything


def test_the_way_back_is_not_taken_back(admin_client: Client, rule: Rule, sound: int) -> None:
    """Else the next one who presses the button repeats the mistake. What is changed afterwards has its own way back."""
    admin_client.post(back(sound), BrowserForm(shown(admin_client.get(back(sound)))).sent)
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert "the one before" not in text_of(admin_client.get(page)), page
    with cache.editing(None, "again"):
        Rule.objects.filter(pk=rule.pk).update(priority=7)
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert offer(sound + 2) in shown(admin_client.get(page)), page


def test_the_offer_passes_by_what_cannot_be_brought_back(
    admin_client: Client, admin_user: User, rule: Rule, sound: int
) -> None:
    """Who has stopped all enforcement first, or reset counters, looks for the bad rule all the same."""
    cache.switch_enforcement(False, admin_user)
    admin_client.post(RULES, {"action": "forget", "_selected_action": rule.pk})
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert offer(sound) in shown(admin_client.get(page))


def test_an_older_change_is_offered_by_the_overview_alone(admin_client: Client, rule: Rule, sound: int) -> None:
    RuleSetVersion.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert offer(sound) in shown(admin_client.get(OVERVIEW))
    assert "by ada What rule export saved" in text_of(admin_client.get(OVERVIEW))
    for page in (RULES, page_of(rule)):
        assert "the one before" not in text_of(admin_client.get(page))


@pytest.mark.parametrize("lacking", ["publish_rule", "view_rule"])
def test_bringing_back_is_offered_to_whom_may_do_it(
    operator: Callable[..., Client], rule: Rule, sound: int, lacking: str
) -> None:
    client = operator(*({*ALL, "view_usagebucket", "view_usage_report"} - {lacking, "change_rule"}))
    for page in (OVERVIEW, RULES, page_of(rule)):
        assert "the one before" not in shown(client.get(page)), page


def test_nothing_is_offered_where_nothing_is_stored_before(admin_client: Client, rule: Rule) -> None:
    for _ in range(2):
        for page in (OVERVIEW, RULES, page_of(rule)):
            assert "the one before" not in text_of(admin_client.get(page))
        cache.invalidate()  # the oldest version: nobody can tell what it changed


def test_the_version_before_is_looked_for_in_the_latest_few_only(admin_client: Client, rule: Rule, sound: int) -> None:
    costs = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            admin_client.get(page_of(rule))
        costs.append(len(queries))
        for _ in range(12):
            cache.invalidate()
    assert costs[1] <= costs[0]
    assert "the one before" not in text_of(admin_client.get(page_of(rule)))
