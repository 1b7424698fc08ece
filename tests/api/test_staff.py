"""The API for staff of the page about REST framework, as it stands there."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_ratelimiter.models import AccessEntry

from ..making import client_of
from ..pages import PAGES, blocks, section

pytestmark = pytest.mark.django_db

URL = "/limits/entries/"
METHODS = ("get", "head", "post", "put", "patch", "delete")


@pytest.fixture(autouse=True)
def _urls(settings: Any) -> None:
    """The addresses of the page's example."""
    module: Any = ModuleType("recipe_urls")
    module.urlpatterns = []
    exec(blocks(section(PAGES["docs/howto/rest-framework.md"], "## An API for staff"), "python")[1], module.__dict__)
    settings.ROOT_URLCONF = module


def log_in(*codenames: str) -> Client:
    """A client of a user with these permissions only."""
    user = User.objects.create(username="agent", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return client_of(user)


def ask(client: Client, method: str, url: str = URL, **sent: Any) -> Any:
    return client.generic(method.upper(), url, content_type="application/json", data=json.dumps(sent))


@pytest.mark.parametrize(
    ("permission", "may"),
    [("", set()), ("view", {"get", "head"}), ("add", {"post"}), ("change", {"put", "patch"}), ("delete", {"delete"})],
)
def test_each_method_needs_its_permission(permission: str, may: set[str]) -> None:
    client = log_in(f"{permission}_accessentry")
    for method in METHODS:
        entry = AccessEntry.objects.create(action="deny", kind="user", value="42")
        url = URL if method == "post" else f"{URL}{entry.pk}/"
        status = ask(client, method, url, action="allow", kind="user", value="43").status_code
        assert (status in (200, 201, 204)) == (method in may), (method, status)
        assert ask(Client(), method, url).status_code == 403
        AccessEntry.objects.all().delete()


def test_rows_are_validated_as_in_the_admin() -> None:
    client = log_in("add_accessentry", "change_accessentry")
    wrong = ask(client, "post", action="deny", kind="ip", value="nothing")
    assert (wrong.status_code, [*wrong.json()]) == (400, ["value"])
    made = ask(client, "post", action="deny", kind="ip", value="192.0.2.7/24").json()
    assert made["value"] == "192.0.2.0/24"
    again = ask(client, "post", action="deny", kind="ip", value="192.0.2.0/24")
    assert again.status_code == 400
    url = f"{URL}{made['id']}/"
    assert ask(client, "patch", url, action="allow").json() == {**made, "action": "allow"}
    assert ask(client, "patch", url, kind="user").status_code == 400
    assert AccessEntry.objects.get().value == "192.0.2.0/24"


def test_reading_shows_what_was_written(client: Client) -> None:
    client = log_in("view_accessentry")
    entry = AccessEntry.objects.create(action="deny", kind="user", value="42", reason="abuse")
    row = {"id": entry.pk, "action": "deny", "kind": "user", "value": "42", "expires_at": None, "reason": "abuse"}
    assert client.get(URL).json() == [row]
