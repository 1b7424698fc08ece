"""A caller's page: what it shows of whom, who may open it, and what leads to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine.usage.rejections import Rejection
from django_ratelimiter.models import (
    AccessEntry,
    Rule,
    Tier,
    TierAssignment,
    TopCaller,
    TopPartition,
    UsageBucket,
)
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from django_ratelimiter.values.digests import whole

from ..pages import shown
from .page import CALLER, ask, press

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


def test_shows_usage_by_day(admin_client: Client, page: str) -> None:
    digest = admin_client.get(page).context["caller"].digest
    start = stored(floor(now(), Granularity.DAY, timezone.get_default_timezone()))
    for partition, rejected in ((digest, 7_431), ("x" * 22, 9_999)):
        TopPartition.objects.create(
            rule_slug="export", granularity="day", start=start, partition=partition, allowed=1, rejected=rejected
        )
    text = shown(admin_client.get(page))
    assert ">7,431<" in text
    assert 'data-title="Rule">Export</td>' in text
    assert "9,999" not in text
    figures = admin_client.get(page).context["usage_chart"]
    assert (len(figures.bars), figures.busiest.partition(": ")[2]) == (30, "1 allowed, 7,431 rejected")
    TopCaller.objects.create(
        identity="user", granularity="day", start=start, partition=digest, allowed=2_000, rejected=7_500
    )
    assert admin_client.get(page).context["usage_chart"].busiest.endswith("2,000 allowed, 7,500 rejected")


def test_shows_the_last_rejections_where_the_engine_keeps_them(
    admin_client: Client, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = admin_client.get(page).context["caller"].digest
    recent = [
        Rejection(1_800_000_000_000_000, 1_799_999_000_000_000, times, label, f"{rule}:{whom}:f3600", is_estimate=True)
        for rule, whom, times in (("export", digest, 7_431), ("export", "x" * 22, 9_999), ("gone", digest, 1))
        for label in [f"{rule}|free"]
    ]
    engine: Any = get_engine()
    monkeypatch.setattr(engine.engine, "recent_rejections", lambda **_asked: recent)
    text = shown(admin_client.get(page))
    assert "≈ 7,431 since" in text  # so many are counted from a sample
    assert len(admin_client.get(page).context["report"].rejections) == 1


def test_a_digest_leads_to_counters(admin_client: Client, page: str, settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    digest = admin_client.get(page).context["caller"].digest
    text = shown(admin_client.get(f"{CALLER}?digest={digest}&rule=export"))
    assert f"<h1>Caller {digest}</h1>" in text
    assert "3 or more used" in text
    assert "Allow more" in text
    assert "none of them blocks" in press(admin_client, f"{CALLER}?digest={digest}&rule=export")


def test_nothing_typed_reaches_the_page_as_html(admin_client: Client, page: str) -> None:
    evil = "<script>alert(1)</script>"
    for query in ({"kind": "partition", "value": f"header:X={evil}"}, {"kind": evil, "value": evil}, {"digest": evil}):
        assert evil not in admin_client.get(CALLER, query).content.decode()
    sent = {"reason": evil, "reset": evil}
    assert evil not in admin_client.post(page, sent, follow=True).content.decode()


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
    report = reverse("admin:django_ratelimiter_usagebucket_rule")
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


@pytest.mark.urls("tests.admin.own_site")
def test_stays_on_its_own_site(admin_client: Client, page: str, ann: User) -> None:
    own = page.replace("/admin/", "/office/")
    text = press(admin_client, own)
    assert "none of them blocks" in text
    assert 'href="/admin/' not in text
    assert f'<a href="/office/auth/user/{ann.pk}/change/">ann</a>' in text
    assert own in shown(admin_client.get(f"/office/auth/user/{ann.pk}/change/"))
    assert admin_client.post(own.partition("?")[0], {"kind": "user", "value": "ann"})["Location"] == own


def test_links_name_the_key_of_a_user_whose_key_is_the_name_of_another(
    admin_client: Client, page: str, ann: User
) -> None:
    User.objects.create_user(str(ann.pk))
    assert "Two users match" in shown(admin_client.get(f"{CALLER}?kind=user&value={ann.pk}"))
    response = admin_client.get(page)
    assert response.context["caller"].user == ann
    query = parse_qs(urlsplit(response.context["explain_url"]).query)
    assert query["user"] == [f"id:{ann.pk}"]
    asked = admin_client.get(response.context["explain_url"] + "&path=/")
    assert asked.context["caller_url"] == page
    digest = response.context["caller"].digest
    assert admin_client.get(f"{CALLER}?digest={whole(digest)}").context["caller"].user == ann
    found = shown(admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": str(ann.pk)}))
    assert page in found
    assert "Two users match" in shown(admin_client.get(asked.request["PATH_INFO"], {"path": "/", "user": str(ann.pk)}))


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


@pytest.mark.parametrize(("codenames", "hides"), [([], True), (["view_tierassignment", "view_accessentry"], False)])
def test_what_is_hidden_is_said(
    operator: Callable[..., Client], page: str, ann: User, free: Tier, codenames: list[str], hides: bool
) -> None:
    AccessEntry.objects.create(kind="user", value=str(ann.pk), action="deny", reason="for fraud")
    TierAssignment.objects.create(user=ann, tier=free, reason="as a trial")
    text = shown(operator("unblock_caller", *codenames).get(page))
    for said, row in (("access entries", "for fraud"), ("tier assignments", "as a trial")):
        assert (f"You may not see {said}." in text, row in text) == (hides, not hides)
