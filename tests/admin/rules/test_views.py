"""The views that a rule matches: told while it is typed and on its page, and the lists that complete its fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_ratelimiter.models import Rule

from ..pages import ADD_RULE, RULES, page_of, shown
from .test_limit_fields import SENTENCES

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.admin.urls")]

EVERY = {"all", "api", "item", "one", "export"}

VIEWS = reverse("admin:django_ratelimiter_rule_views")


def ask(client: Client, **typed: str) -> str:
    response = client.get(VIEWS, {"path_kind": "any", **typed})
    assert response.status_code == 200
    return str(response.json()["text"])


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ({}, "6 views: login, api:export, api:items, api:item, api:old, tests.admin.urls.page."),
        ({"path_kind": "prefix", "path": "/api/"}, "4 views: api:export, api:items, api:item, api:old."),
        ({"path_kind": "prefix", "path": "/api/items/7"}, "1 view: api:item."),
        ({"path_kind": "exact", "path": "/api/items/"}, "1 view: api:items."),
        ({"path_kind": "exact", "path": "/api/items/7/"}, "1 view: api:item."),
        ({"path_kind": "route", "path": "api/items/<int:pk>/"}, "1 view: api:item."),
        ({"path_kind": "route", "path": "/api/items/<int:pk>/"}, "1 view: api:item."),
        ({"view_name": "api:item"}, "1 view: api:item."),
        ({"view_name": "api:item", "path_kind": "prefix", "path": "/api/"}, "1 view: api:item."),
        ({"scope": "export"}, "1 view: api:export."),
    ],
)
def test_names_the_views(admin_client: Client, typed: dict[str, str], names: str) -> None:
    assert ask(admin_client, **typed).startswith(f"Matches {names}")
    response = admin_client.get(page_of(Rule.objects.create(slug="r", name="R", **typed)))
    assert f"Matches {names}" in shown(response)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"view_name": "api:itme"}, "Matches no view. No view is named “api:itme”"),
        ({"view_name": "item"}, "Did you mean “api:item”?"),
        ({"path_kind": "exact", "path": "/nowhere/"}, "requests for this path that end in a 404"),
        ({"path_kind": "prefix", "path": "/admin/"}, "Matches no view."),  # exempt
        ({"scope": "<b>mail"}, "No view names the scope “<b>mail”, so this rule applies only where"),
        ({"path_kind": "prefix", "path": ""}, ""),
        ({"path_kind": "glob", "path": "x"}, ""),
    ],
)
def test_says_that_there_is_none(admin_client: Client, typed: dict[str, str], says: str) -> None:
    told = ask(admin_client, **typed)
    assert says in told
    assert bool(told) == bool(says)


def test_many_views_are_counted_and_only_some_named(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.rules.formatting.MAX_NAMES", 2)
    assert ask(admin_client) == "Matches 6 views: login, api:export and 4 more."


def test_what_it_says_agrees_with_what_a_request_meets(admin_client: Client, rule: Rule) -> None:
    Rule.objects.update(path_kind="prefix", path="/api/items/", mode="shadow")
    names = re.findall(r"api:\w+", ask(admin_client, path_kind="prefix", path="/api/items/"))
    met = []
    for path, name in {"/api/items/": "api:items", "/api/items/3/": "api:item", "/api/export/": "api:export"}.items():
        response: Any = admin_client.get(path)
        if response.wsgi_request.ratelimit.results:
            met.append(name)
    assert met == names


@pytest.mark.parametrize(("permission", "status"), [("change_rule", 200), ("add_rule", 200), ("view_rule", 403)])
def test_needs_the_permission_to_change(operator: Callable[..., Client], permission: str, status: int) -> None:
    client = operator(permission)
    assert [client.get(url).status_code for url in (VIEWS, SENTENCES)] == [status] * 2


def test_fields_are_completed_by_what_the_project_has(admin_client: Client) -> None:
    page = shown(admin_client.get(ADD_RULE))
    lists = dict(re.findall(r'<datalist id="ratelimiter-(\w+)">(.*?)</datalist>', page))
    assert "<option>api:item</option>" in lists["views"]
    assert "admin:" not in lists["views"]
    assert "<option>api/items/<int:pk>/</option>" in lists["routes"]
    assert "<option>/api/items/</option>" in lists["paths"]
    assert lists["scopes"] == "<option>export</option>"
    for field, name in (("view_name", "views"), ("scope", "scopes")):
        tag = re.search(rf'<input[^>]*name="{field}"[^>]*>', page)
        assert tag
        assert f'list="ratelimiter-{name}"' in tag[0]


@pytest.mark.parametrize(
    ("view", "slugs"),
    [("api:item", {"all", "api", "item", "one"}), ("api:items", {"all", "api"}), ("login", {"all"}), ("", EVERY)],
)
def test_the_list_is_filtered_by_view(admin_client: Client, view: str, slugs: set[str]) -> None:
    for slug, fields in {
        "all": {},
        "api": {"path_kind": "prefix", "path": "/api/"},
        "item": {"view_name": "api:item"},
        "one": {"path_kind": "exact", "path": "/api/items/7/"},
        "export": {"scope": "export"},
    }.items():
        Rule.objects.create(slug=slug, name=slug, **fields)
    response = admin_client.get(RULES, {"view": view})
    assert {rule.slug for rule in response.context["cl"].result_list} == (
        slugs or {"all", "api", "item", "one", "export"}
    )
    offered = re.findall(r"\?view=([\w%:]+)", shown(response))
    assert {"api:item"} <= {name.replace("%3A", ":") for name in offered}
