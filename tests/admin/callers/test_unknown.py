"""What cannot be known of a caller is said instead of guessed."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client, RequestFactory
from django.urls import reverse

from django_ratelimiter import limiter
from django_ratelimiter.admin.identities import names_in_words
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.values.digests import whole

from ...test_unreachable import unreachable
from ..pages import shown
from .page import CALLER, ask, press

pytestmark = pytest.mark.django_db

#: A window of nearly a year. One of whole days would now and then end with a window of an hour, and the page says when
#: each ends only where they differ.
LONG = Decimal(31_534_766)


def words(response: Any) -> str:
    return " ".join(shown(response).split())


@pytest.fixture
def shared(free: Tier) -> Rule:
    """One counter for all callers, which is used up for those in no tier."""
    rule = Rule.objects.create(slug="shared", name="Shared", mode="enforce", path_kind="exact", path="/")
    RuleLimit.objects.create(rule=rule, tier=free, quota=50, window_seconds=Decimal(3600), algorithm="fixed_window")
    RuleLimit.objects.create(rule=rule, quota=2, window_seconds=Decimal(3600), algorithm="fixed_window")
    return rule


def use_up() -> None:
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    for _ in range(3):
        request.__dict__.pop("ratelimit", None)
        limiter.check(request)


def test_without_redis_the_page_says_what_cannot_be_read(admin_client: Client, shared: Rule) -> None:
    Rule.objects.update(partition_by=["user"])
    user = digest("user:7")
    with unreachable():
        text = words(admin_client.get(f"{CALLER}?digest={user}&rule=shared"))
        no_rule = words(admin_client.get(f"{CALLER}?digest={user}"))
        assert {*names_in_words(None, [user]).values()} == {"user: 7"}
    assert "Redis cannot be reached now, so the figures are missing: " in text
    assert "Whether this caller is blocked now is not known. Only its digest is known" in text
    assert "Not known now. The limits shown are those of the default tier of authenticated callers." in text
    assert ">Shared</a>" in text
    assert (">Shared</a>" in no_rule, no_rule.count("Not known.")) == (False, 2)


def test_a_user_who_is_not_there_is_no_blocked_caller(admin_client: Client, free: Tier, shared: Rule) -> None:
    use_up()
    for value in ("424242", "id%3A424242", "nobody-of-this-name"):
        text = words(admin_client.get(f"{CALLER}?kind=user&value={value}"))
        assert "There is no such user, and no rule has counted requests with this key recently." in text
        assert "Not known: there is no such user." in text
        for part in ("blocked</span>", "Counters now", "Reset all counters", "Allow more", "passes"):
            assert part not in text, part


@pytest.mark.parametrize("pk", ["9" * 19, "9" * 50, "nobody"])
def test_a_partition_may_name_a_user_whom_no_database_can_have(
    admin_client: Client, shared: Rule, caplog: pytest.LogCaptureFixture, pk: str
) -> None:
    assert "Not known" not in words(admin_client.get(CALLER, {"kind": "partition", "value": f"user:{pk}"}))
    explained = {"path": "/", "method": "GET", "identities": f"user={pk}"}
    assert "Rules that apply" in words(admin_client.post(reverse("admin:django_ratelimiter_explain"), explained))
    assert caplog.records == []


def test_a_user_who_is_gone_may_have_counters(admin_client: Client, page: str, ann: User, shared: Rule) -> None:
    ann.delete()
    response = admin_client.get(page)
    text = words(response)
    assert [row.counter.rule.slug for row in response.context["counters"]] == ["export", "search"]
    assert "One rule rejects requests of this caller now" in text
    assert "Allow more" not in text
    text = press(admin_client, page, "export:f3600")
    assert "There is no such user. The counters shown are those of requests with this key." in " ".join(text.split())


def test_a_digest_is_neither_blocked_nor_not(admin_client: Client, page: str, ann: User, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    found = digest(f"user:{ann.pk}")
    text = words(admin_client.get(f"{CALLER}?digest={found}"))
    assert "Whether this caller is blocked now is not known." in text
    assert "3 or more used" in text
    assert "3 used" in text
    assert "if in tier free" in text
    assert text.count(">not known<") == 2
    assert ">passes<" not in text
    assert ">blocked<" not in text


def test_a_digest_has_the_tier_of_its_last_rejection(admin_client: Client, page: str, ann: User, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    gold = Tier.objects.create(slug="gold", name="Gold", rank=9)
    rule = Rule.objects.get(slug="export")
    RuleLimit.objects.create(rule=rule, tier=gold, quota=4, window_seconds=Decimal(60), algorithm="fixed_window")
    gold.assignments.create(user=ann)
    tiers.forget()
    assert not ask(ann, 5)
    response = admin_client.get(f"{CALLER}?digest={digest(f'user:{ann.pk}')}")
    text = words(response)
    assert ">blocked</span>" in text
    assert "Only the digest of this caller is known: another tier since then" in text
    assert "4 of 4, 0 left" in text
    assert [row.counter.name for row in response.context["counters"]] == ["export:f60", "search:f3600"]


@pytest.mark.parametrize(("codenames", "leads"), [(["reveal_caller"], True), ([], False)])
def test_a_digest_leads_to_whom_one_may_know(
    operator: Callable[..., Client], page: str, ann: User, codenames: list[str], *, leads: bool
) -> None:
    found = digest(f"user:{ann.pk}")
    response = operator("unblock_caller", *codenames).get(f"{CALLER}?digest={whole(found)}")
    assert response.context["caller"].kind == ("user" if leads else "digest")


def test_a_link_to_a_new_assignment_names_a_user(admin_client: Client, ann: User) -> None:
    add = reverse("admin:django_ratelimiter_tierassignment_add")
    assert f'value="{ann.pk}" selected>ann<' in shown(admin_client.get(f"{add}?user={ann.pk}"))


def test_the_first_line_tells_own_rules_from_shared_ones(admin_client: Client, page: str, ann: User) -> None:
    for slug in ("site", "search-all"):
        rule = Rule.objects.create(slug=slug, name=slug.title(), mode="enforce", path_kind="exact", path="/")
        RuleLimit.objects.create(rule=rule, quota=1, window_seconds=Decimal(3600), algorithm="fixed_window")
    use_up()
    state = admin_client.get(page).context["state"]
    assert ([each.name for each in state.own], sorted(each.name for _text, each in state.shared)) == (
        ["Export"], ["Search-All", "Site"])  # fmt: skip
    text = words(admin_client.get(page))
    assert "One rule rejects requests of this caller now:" in text
    assert "<strong>/ is at its limit</strong> until" in text


def test_a_shared_counter_does_not_block_this_caller_alone(admin_client: Client, page: str, ann: User) -> None:
    Rule.objects.update(mode="off")
    rule = Rule.objects.create(slug="site", name="Site", mode="enforce", path_kind="exact", path="/")
    RuleLimit.objects.create(rule=rule, quota=1, window_seconds=Decimal(3600), algorithm="fixed_window")
    use_up()
    text = " ".join(re.sub(r"<[^>]*>", " ", words(admin_client.get(page))).split())
    assert "No counter of this caller alone rejects requests now. / is at its limit until " in text
    assert "by the rule Site : all callers share its counter, which can only be reset for everybody." in text
    report = report_of(caller_of("user", f"id:{ann.pk}"))
    assert (report.blocked, [rule.slug for rule in report.blocked_shared]) == (False, ["site"])


def use_up_scope(ann: User, quota: int) -> None:
    request = RequestFactory().get("/elsewhere")
    request.user = ann
    for _ in range(quota + 1):
        request.__dict__.pop("ratelimit", None)
        limiter.check(request, scope="nightly")


@pytest.fixture
def nightly() -> Rule:
    """A rule for a scope that no view has, with a window that is longer than all others."""
    rule = Rule.objects.create(slug="nightly", name="Nightly", mode="enforce", partition_by=["user"], scope="nightly")
    RuleLimit.objects.create(rule=rule, quota=2, window_seconds=LONG, algorithm="fixed_window")
    return rule


def test_the_first_line_tells_rules_of_views_from_those_of_tasks(
    admin_client: Client, page: str, ann: User, nightly: Rule
) -> None:
    use_up_scope(ann, 2)
    response = admin_client.get(page)
    state = response.context["state"]
    assert [each.name for each in state.own] == ["Export"]
    assert [each.name for each in state.elsewhere] == ["Nightly"]
    assert state.own[0].until
    assert state.own[0].until != state.elsewhere[0].until
    text = words(response)
    part = "Only code that asks for their scope, such as a task or a command, is rejected by these rules now:"
    assert ">blocked</span> One rule rejects" in text
    assert part in text
    assert f"until {state.elsewhere[0].until}." in text[text.index(part) :]
    RuleLimit.objects.filter(rule__slug="export").update(quota=100)
    cache.invalidate()
    text = words(admin_client.get(page))
    assert ">it depends</span> No rule for a view rejects this caller now." in text
    assert part in text
    assert "not blocked" not in text


def test_the_first_line_says_when_each_rule_passes(admin_client: Client, page: str, ann: User, free: Tier) -> None:
    rule = Rule.objects.create(slug="weekly", name="Weekly", mode="enforce", partition_by=["user"])
    RuleLimit.objects.create(rule=rule, quota=1, window_seconds=LONG, algorithm="fixed_window")
    RuleLimit.objects.filter(rule__slug="export").update(quota=4)
    cache.invalidate()
    ask(ann, 1)
    RuleLimit.objects.filter(rule__slug="export").update(quota=3)
    cache.invalidate()
    response = admin_client.get(page)
    state = response.context["state"]
    ends = {each.name: each.until for each in state.own}
    assert set(ends) == {"Export", "Weekly"}
    assert ends["Export"] != ends["Weekly"]
    text = words(response)
    assert f"Export</a> until {ends['Export']}" in text
