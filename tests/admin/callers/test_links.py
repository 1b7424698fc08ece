"""What leads to a caller's page, and where it leads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.models import TopPartition, UsageBucket

from ..pages import shown
from .page import CALLER, press

pytestmark = pytest.mark.django_db


def test_a_user_and_a_client_of_a_report_link_to_it(admin_client: Client, page: str, ann: User) -> None:
    text = shown(admin_client.get(reverse("admin:auth_user_change", args=[ann.pk])))
    assert f'<a href="{page}">Rate limits</a>' in text
    assert "Rate limits</a></li>" not in shown(admin_client.get(reverse("admin:auth_user_add")))
    digest, hour = admin_client.get(page).context["caller"].digest, timezone.now().replace(minute=0, second=0)
    hour = hour.replace(microsecond=0) - timedelta(hours=1)
    for granularity in ("minute", "hour"):
        UsageBucket.objects.create(rule_slug="export", granularity=granularity, start=hour, allowed=1)
    TopPartition.objects.create(rule_slug="export", granularity="hour", start=hour, partition=digest, allowed=1)
    report = reverse("admin:django_ratelimiter_usagebucket_rule")
    link = f"{CALLER}?digest={digest}&rule=export"
    listed = shown(admin_client.get(f"{report}?rule=export&period=24h"))
    assert f'<a href="{link}">user: ann (id {ann.pk})</a>' in listed  # looked up just now, by somebody who may know
    assert "<h1>User" in shown(admin_client.get(link))


def test_the_list_of_assignments_leads_to_the_search(admin_client: Client) -> None:
    listed = shown(admin_client.get(reverse("admin:django_ratelimiter_tierassignment_changelist")))
    assert f'<a href="{CALLER}">Find a caller</a>' in listed


def test_links_are_shown_to_those_alone_who_may_follow(operator: Callable[..., Client], page: str, ann: User) -> None:
    client = operator("view_user", "view_usage_report")
    assert CALLER not in shown(client.get(reverse("admin:auth_user_change", args=[ann.pk])))
    assert client.get(page).status_code == 403


@pytest.mark.urls("tests.admin.callers.other_site")
def test_stays_on_its_own_site(admin_client: Client, page: str, ann: User) -> None:
    own = page.replace("/admin/", "/backoffice/")
    text = press(admin_client, own, "reset")
    assert "none of them blocks" in text
    assert 'href="/admin/' not in text
    assert f'<a href="/backoffice/auth/user/{ann.pk}/change/">ann</a>' in text
    assert own in shown(admin_client.get(f"/backoffice/auth/user/{ann.pk}/change/"))
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
    assert admin_client.get(f"{CALLER}?digest={digest}").context["caller"].user == ann
    found = shown(admin_client.post(reverse("admin:django_ratelimiter_search"), {"q": str(ann.pk)}))
    assert page in found
    assert "Two users match" in shown(admin_client.get(asked.request["PATH_INFO"], {"path": "/", "user": str(ann.pk)}))
