"""Every address of this app in the admin, opened by four kinds of users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, reverse

from django_ratelimiter.admin.callers.tables import TierAssignmentAdmin
from django_ratelimiter.admin.rules.admin import RuleAdmin
from django_ratelimiter.admin.usage.admin import UsageBucketAdmin
from tests.admin_pages import PAGES, Page, fill, pages, users

from ..making import client_of
from .pages import BrowserForm

pytestmark = pytest.mark.django_db

#: Addresses that no page of PAGES stands for: files, what scripts ask for, and what only takes a POST.
OTHERS = {
    "django_ratelimiter_rule_sentences",
    "django_ratelimiter_rule_views",
    "django_ratelimiter_rules_download",
    "django_ratelimiter_usage_data",
    "django_ratelimiter_accessentry_add",
    "django_ratelimiter_tier_add",
    *(
        f"django_ratelimiter_{model}_{page}"
        for model in ("tier", "tierassignment", "accessentry")
        for page in ("history", "delete")
    ),
}


@pytest.fixture
def people(client: Client) -> dict[str, User]:
    found = users()
    fill(found["superuser"])
    return found


def logged_in(user: User) -> Client:
    """A client of their own for each: to log in takes longer than most pages do."""
    return client_of(user)


def status(client: Client, url: str, method: str = "get") -> int:
    return int(getattr(client, method)(url).status_code)


def addresses(patterns: list[Any], above: str = "") -> Iterator[str]:
    """The names of all addresses of the admin that are ours."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from addresses(pattern.url_patterns)
        elif isinstance(pattern, URLPattern) and pattern.name and pattern.name.startswith("django_ratelimiter_"):
            yield pattern.name


def test_each_address_is_known() -> None:
    """Who adds one adds it to PAGES, or to OTHERS."""
    known = {page.url_name for page in PAGES} | OTHERS
    assert {*addresses(admin.site.get_urls())} <= known


def test_each_page_is_for_whom_it_is_for(client: Client, people: dict[str, User]) -> None:
    clients = {name: logged_in(user) for name, user in people.items()}
    for page in PAGES:
        if not page.url:
            continue
        seen = {name: status(each, page.url) for name, each in clients.items()}
        nothing = 200 if page.is_home else 404 if page.url_name == "app_list" else 403
        assert seen == {"superuser": 200, "viewer": page.viewer, "staff": nothing}, page.name
        response = client.get(page.url)
        assert (response.status_code, response["Location"].partition("?")[0]) == (302, reverse("admin:login")), (
            page.name
        )


@pytest.mark.parametrize(
    "method",
    ["get", "post", *(pytest.param(rare, marks=pytest.mark.once) for rare in ("put", "delete", "head", "options"))],
)
def test_no_method_opens_a_page_without_permission(client: Client, people: dict[str, User], method: str) -> None:
    staff = logged_in(people["staff"])
    for name in sorted({*addresses(admin.site.get_urls())}):
        for args in ([], [1], ["totals", "csv"]):
            page = Page(name, name, args=lambda args=args: args)
            if page.url:
                assert status(staff, page.url, method) in (403, 405), (name, method)
                assert status(client, page.url, method) == 302, (name, method)


def test_no_form_from_elsewhere_is_taken(people: dict[str, User]) -> None:
    client = client_of(people["superuser"], enforce_csrf_checks=True)
    for name in sorted({*addresses(admin.site.get_urls())}):
        for args in ([], [1], ["totals", "csv"]):
            page = Page(name, name, args=lambda args=args: args)
            assert not page.url or status(client, page.url, "post") == 403, name


def test_whether_a_row_exists_is_told_to_nobody_who_may_not_see_it(people: dict[str, User]) -> None:
    staff = logged_in(people["staff"])
    for page in PAGES:
        if page.url and page.args() and page.url_name not in ("index", "app_list"):
            nowhere = Page(page.name, page.url_name, args=lambda: ["999999"])
            assert status(staff, nowhere.url) == status(staff, page.url), page.name


def test_a_page_has_one_name_in_its_url_its_view_and_its_template(people: dict[str, User]) -> None:
    named = {page.view.__name__ for owner in (RuleAdmin, TierAssignmentAdmin, UsageBucketAdmin) for page in owner.pages}
    found = {page.url_name.removeprefix("django_ratelimiter_"): page.url for page in pages() if page.args() == []}
    found["usage"] = found["usagebucket_changelist"]
    shown = {name: url for name, url in found.items() if f"{name}_view" in named}
    assert len(shown) > 8
    for name, url in shown.items():
        template = logged_in(people["superuser"]).get(url).templates[0].name
        assert template in (f"admin/django_ratelimiter/{name}.html", "admin/django_ratelimiter/caller_search.html")


@pytest.mark.urls("tests.admin.own_site")
def test_pages_of_a_site_of_the_projects_own_lead_to_that_site_alone(people: dict[str, User]) -> None:
    client = logged_in(people["superuser"])
    found = {page.name: client.get(page.url.replace("/admin/", "/office/")) for page in pages() if not page.is_home}
    shown = {name: response for name, response in found.items() if response.status_code == 200}
    assert {"overview", "rules", "rule", "caller-blocked", "explained", "history", "history-version"} <= {*shown}
    for name, response in shown.items():
        assert '"/admin/' not in response.content.decode(), name
    back = found["history-bring-back"]
    sent = BrowserForm(back.content.decode()).sent
    assert client.post(back.request["PATH_INFO"], sent)["Location"] == "/office/django_ratelimiter/rule/history/"
