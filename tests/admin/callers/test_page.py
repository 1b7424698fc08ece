"""A caller's page: what it shows of whom, what leads to it, and what it says where something is not known."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.admin.formatting import names_in_words
from django_ratelimiter.identity import digest
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.models import (
    AccessEntry,
    CallerUsage,
    Rule,
    RuleLimit,
    Tier,
    TierAssignment,
    TopPartition,
    UsageBucket,
)
from django_ratelimiter.rules import cache
from django_ratelimiter.usage.times import Granularity, floor, now
from django_ratelimiter.values.digests import whole

from ...making import update
from ...test_unreachable import unreachable
from ..pages import shown
from .page import CALLER, add_rule, ask, press

pytestmark = pytest.mark.django_db


def test_says_who_is_blocked_by_what_and_why(admin_client: Client, page: str, ann: User) -> None:
    text = shown(admin_client.get(page))
    assert f"<h1>User {ann.pk}, ann</h1>" in text
    assert f'<a href="{reverse("admin:auth_user_change", args=[ann.pk])}">ann</a>' in text
    state = " ".join(text.split())
    assert re.search(
        r"blocked</span> One rule rejects requests of this caller now: <a [^>]+>Export</a> until [^<]+\.", state
    )
    assert "3 of 3" in text
    assert "3 of 100" in text
    assert "the default, as no tier is assigned to this caller" in text
    export = Rule.objects.get(slug="export")
    assert f'<a href="{reverse("admin:django_ratelimiter_rule_change", args=[export.pk])}">Export</a>' in text
    assert text.index(">Export<") < text.index(">Search<")  # what blocks comes first


def test_the_key_of_another_model_is_shown_as_it_is_written(admin_client: Client) -> None:
    text = shown(admin_client.get(CALLER, {"kind": "user", "value": "shop.Device:7"}))
    assert "<h1>User shop.Device:7</h1>" in text


def test_leads_to_the_usage_of_the_callers_month_under_a_rule_that_counts_callers_exactly(
    admin_client: Client, operator: Callable[..., Client], page: str, ann: User
) -> None:
    assert "Usage this month" not in shown(admin_client.get(page))
    with cache.editing(User.objects.create_superuser("author"), "rules"):
        Rule.objects.filter(slug="export").update(exact_usage=True)
    day = (timezone.localtime() - timedelta(days=9)).day
    TierAssignment.objects.create(user=ann, anchor_day=day)
    hour = floor(now() - timedelta(hours=1), Granularity.HOUR, UTC)
    row = {"rule_slug": "export", "identity": "user", "value": str(ann.pk), "hour": hour}
    CallerUsage.objects.create(**row, allowed=1_053, rejected=44, rejected_by_other=6, units=1_058)
    response = admin_client.get(page)
    [url] = filter(None, [row["usage_url"] for row in response.context["counters"]])
    assert f"day={day}" in url
    assert url in shown(response)
    usage = admin_client.get(url)
    assert usage.context["chosen"] == f"user: ann (id {ann.pk})"
    assert [usage.context["together"][name] for name in ("requests", "units")] == ["1,103", "1,058"]
    assert "Usage this month" not in shown(operator("view_caller").get(page))


def test_a_digest_leads_to_counters(admin_client: Client, page: str, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    digest = admin_client.get(page).context["caller"].digest
    text = shown(admin_client.get(f"{CALLER}?digest={digest}&rule=export"))
    assert f"<h1>Caller {digest}</h1>" in text
    assert "3 or more used" in text
    assert "Allow more" in text
    assert "none of them blocks" in press(admin_client, f"{CALLER}?digest={digest}&rule=export")


def test_digest_is_not_blocked_while_enforcement_is_stopped(admin_client: Client, page: str, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    address = f"{CALLER}?digest={admin_client.get(page).context['caller'].digest}&rule=export"
    cache.switch_enforcement(False)
    text = shown(admin_client.get(address))
    assert ("not blocked</span>" in text, "Whether this caller is blocked now is not known" in text) == (True, False)


@pytest.mark.parametrize(("kind", "value"), [("ip", "x"), ("colour", "red"), ("user", "\0"), ("partition", "<b>")])
def test_who_is_nobody_is_said_beside_the_form(admin_client: Client, kind: str, value: str) -> None:
    for response in (
        admin_client.get(CALLER, {"kind": kind, "value": value}),
        admin_client.post(CALLER, {"kind": kind, "value": value}),
    ):
        assert response.status_code == 200
        assert 'role="alert"' in response.content.decode()


@pytest.mark.parametrize(
    ("action", "now"), [("deny", "Denied by an access entry"), ("allow", "Allowed past all rules")]
)
def test_an_entry_goes_before_the_counters_of_a_rejection(
    admin_client: Client, page: str, ann: User, action: str, now: str
) -> None:
    assert not ask(ann)
    AccessEntry.objects.create(action=action, kind="user", value=str(ann.pk))
    text = shown(admin_client.get(f"{page}&rule=export"))
    assert f"<dd>{now}" in text
    assert f"{action}</span> {action} " not in " ".join(text.split())  # the action is said once
    assert f'ratelimiter-{action}">{action}</span>' in text


def test_a_user_and_a_client_of_a_report_link_to_it(admin_client: Client, page: str, ann: User) -> None:
    text = shown(admin_client.get(reverse("admin:auth_user_change", args=[ann.pk])))
    assert f'<a href="{page}">Rate limits</a>' in text
    assert "Rate limits</a></li>" not in shown(admin_client.get(reverse("admin:auth_user_add")))
    digest, hour = admin_client.get(page).context["caller"].digest, timezone.now().replace(minute=0, second=0)
    hour = hour.replace(microsecond=0) - timedelta(hours=1)
    for granularity in ("minute", "hour"):
        UsageBucket.objects.create(rule_slug="export", granularity=granularity, start=hour, allowed=1)
    TopPartition.objects.create(
        rule_slug="export", granularity="hour", start=hour, partition=digest, tail=digest.tail, allowed=1
    )
    report = reverse("admin:django_ratelimiter_usage_rule")
    link = f"{CALLER}?digest={whole(digest)}&rule=export"
    listed = shown(admin_client.get(f"{report}?rule=export&period=24h"))
    assert f'<a href="{link}">user: ann (id {ann.pk})</a>' in listed
    assert "<h1>User" in shown(admin_client.get(link))


def test_the_list_of_assignments_leads_to_the_search(admin_client: Client) -> None:
    listed = shown(admin_client.get(reverse("admin:django_ratelimiter_tierassignment_changelist")))
    assert f'<a href="{CALLER}">Find a caller</a>' in listed


def test_links_are_shown_to_those_alone_who_may_follow(operator: Callable[..., Client], page: str, ann: User) -> None:
    client = operator("view_user", "view_usage_report")
    assert CALLER not in shown(client.get(reverse("admin:auth_user_change", args=[ann.pk])))
    assert client.get(page).status_code == 403


@pytest.mark.parametrize(
    ("permissions", "status", "may_reset"),
    [([], 403, False), (["view_rule", "view_usage_report", "add_tierassignment", "add_accessentry"], 403, False),
     (["view_tierassignment"], 200, False), (["unblock_caller"], 200, True)],
)  # fmt: skip
def test_a_reset_takes_its_own_permission(
    operator: Callable[..., Client], page: str, permissions: list[str], status: int, may_reset: bool
) -> None:
    client = operator(*permissions)
    response = client.get(page)
    assert response.status_code == status
    assert ("Reset all counters" in shown(response)) == may_reset
    assert client.get(f"{CALLER}?kind=user&value=424242").status_code == status  # whoever that is
    assert client.get(CALLER).status_code == status
    assert client.post(page, {"reset": "", "reason": "x"}).status_code == (302 if may_reset else 403)


def test_shows_the_name_usage_and_links_to_those_alone_who_may(
    operator: Callable[..., Client], page: str, ann: User
) -> None:
    text = shown(operator("unblock_caller").get(page))
    assert "ann" not in text.replace("cannot", "")
    assert "Known usage" not in text
    assert reverse("admin:django_ratelimiter_rule_changelist") not in text


def test_who_may_reset_sees_why(operator: Callable[..., Client], page: str, ann: User, free: Tier) -> None:
    AccessEntry.objects.create(kind="user", value=str(ann.pk), action="deny", reason="for fraud")
    TierAssignment.objects.create(user=ann, tier=free, reason="as a trial")
    text = shown(operator("unblock_caller").get(page))
    assert [row in text for row in ("for fraud", "as a trial")] == [True, True]


#: A window of nearly a year. One of whole days would now and then end with a window of an hour, and the page says when
#: each ends only where they differ.
LONG = Decimal(31_534_766)


def words(response: Any) -> str:
    return " ".join(shown(response).split())


@pytest.fixture
def shared(free: Tier) -> Rule:
    """One counter for all callers, which is used up for those in no tier."""
    rule = add_rule("shared", 2)
    RuleLimit.objects.create(rule=rule, tier=free, quota=50, window_seconds=3_600, algorithm="fixed_window")
    return rule


def test_without_redis_the_page_says_what_cannot_be_read(admin_client: Client, shared: Rule) -> None:
    Rule.objects.update(partition_by=["user"])
    user = digest("user:424242")
    with unreachable():
        text = words(admin_client.get(f"{CALLER}?digest={user}&rule=shared"))
        no_rule = words(admin_client.get(f"{CALLER}?digest={user}"))
        assert {*names_in_words(None, [user]).values()} == {"user: 424242"}
    assert "Redis cannot be reached now, so the figures are missing: " in text
    assert "Whether this caller is blocked now is not known. Only its digest is known" in text
    assert "Not known now. The limits shown are those of the default tier of authenticated callers." in text
    assert ">Shared</a>" in text
    assert (">Shared</a>" in no_rule, no_rule.count("Not known.")) == (False, 2)


def test_a_user_who_is_not_there_is_no_blocked_caller(admin_client: Client, free: Tier, shared: Rule) -> None:
    ask(AnonymousUser(), 3)
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
    assert [row["counter"].rule.slug for row in response.context["counters"]] == ["export", "search"]
    assert "One rule rejects requests of this caller now" in text
    assert "Allow more" not in text
    text = press(admin_client, page, "export:f3600")
    assert "There is no such user. The counters shown are those of requests with this key." in " ".join(text.split())


@pytest.mark.parametrize(("codenames", "leads"), [(["reveal_caller"], True), ([], False)])
def test_a_digest_leads_to_whom_one_may_know(
    operator: Callable[..., Client], page: str, ann: User, codenames: list[str], *, leads: bool
) -> None:
    found = digest(f"user:{ann.pk}")
    response = operator("unblock_caller", *codenames).get(f"{CALLER}?digest={whole(found)}")
    assert response.context["caller"].kind == ("user" if leads else "digest")


def test_a_shared_counter_does_not_block_this_caller_alone(admin_client: Client, page: str, ann: User) -> None:
    Rule.objects.update(mode="off")
    add_rule("site", 1)
    ask(AnonymousUser(), 3)
    text = " ".join(re.sub(r"<[^>]*>", " ", words(admin_client.get(page))).split())
    assert "No counter of this caller alone rejects requests now. / is at its limit until " in text
    assert "by the rule Site : all callers share its counter, which can only be reset for everybody." in text
    report = report_of(caller_of("user", f"id:{ann.pk}"))
    assert (report.blocked, [rule.slug for rule in report.blocked_shared]) == (False, ["site"])


def test_the_first_line_says_when_each_rule_passes(admin_client: Client, page: str, ann: User, free: Tier) -> None:
    add_rule("weekly", 1, {"window_seconds": LONG}, partition_by=["user"])
    update(RuleLimit.objects.filter(rule__slug="export"), quota=4)
    ask(ann, 1)
    update(RuleLimit.objects.filter(rule__slug="export"), quota=3)
    response = admin_client.get(page)
    state = response.context["state"]
    ends = {each.name: each.until for each in state["own"]}
    assert set(ends) == {"Export", "Weekly"}
    assert ends["Export"] != ends["Weekly"]
    text = words(response)
    assert f"Export</a> until {ends['Export']}" in text
