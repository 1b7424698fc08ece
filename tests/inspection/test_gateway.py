"""Explaining what a gateway would be answered about a request for another server: the same as its view answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import path, reverse

from django_ratelimiter import gateway
from django_ratelimiter.explain import Question, QuestionError, explain
from django_ratelimiter.models import AccessEntry
from tests.admin.conftest import operator
from tests.making import Clock, MakeRule

__all__ = ["operator"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__), pytest.mark.usefixtures("trusting")]

PEER, CLIENT = "10.0.0.1", "203.0.113.1"

urlpatterns = [
    path("admin/", admin.site.urls),
    path("gateway/", gateway.view(scope="billing")),
    path("gateway/nginx/", gateway.view(rejected_status=403)),
    path("gateway/users/", gateway.view(user_header="X-User-Id")),
    path("gateway/folding/", gateway.view(fold_paths=True)),
    path("gateway/envoy<path:path>", gateway.view()),
]


@pytest.fixture
def trusting(clock: Clock) -> Iterator[None]:
    with override_settings(RATELIMITER={"TRUSTED_PROXIES": ["10.0.0.0/8"], "EXEMPT_PATHS": ["/open/"]}):
        yield


def asked(at: str, uri: str, method: str = "GET", user: str = "", **headers: str) -> Any:
    """The answer to a gateway."""
    sent = {"X-Forwarded-Uri": uri, "X-Forwarded-Method": method, "X-Forwarded-For": CLIENT}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    if user:
        sent["X-User-Id"] = user
    if "<path" in at:
        return Client().generic(method, f"/gateway/envoy{uri}", headers=sent, REMOTE_ADDR=PEER)
    return Client().get(at, headers=sent, REMOTE_ADDR=PEER)


def agree(at: str, uri: str, method: str = "GET", user: str = "", **headers: str) -> int:
    """Explain first, then ask: both answers are the same. Return the status."""
    question = Question(
        method=method,
        path=uri,
        ip=CLIENT,
        user=user,
        gateway=at,
        headers=tuple((name.replace("_", "-"), value) for name, value in headers.items()),
    )
    told = explain(question).response
    answer = asked(at, uri, method, user, **headers)
    assert told.status == answer.status_code
    assert told.body == answer.content.decode()
    assert {**told.fields} == {name: value for name, value in answer.headers.items() if name in told.fields}
    assert {name for name in answer.headers if name.lower().startswith(("ratelimit", "x-ratelimit", "retry"))} <= set(
        told.fields
    )
    return int(answer.status_code)


@pytest.mark.parametrize(
    ("at", "limited"), [("/gateway/", 429), ("/gateway/nginx/", 403), ("/gateway/envoy<path:path>", 429)]
)
def test_agrees_with_the_view(make_rule: MakeRule, at: str, limited: int) -> None:
    make_rule("export", quota=2, partition_by=["ip"], path_kind="prefix", path="/api/export", methods=["POST"])
    uri = "/api//export/?a=b" if "<path" in at else "/api//export/./?a=b"  # that gateway makes its paths plain itself
    assert [agree(at, uri, "POST") for _ in range(3)] == [200, 200, limited]
    assert agree(at, "/api/export") == 200
    assert agree(at, "/open/x", "POST") == 200
    assert agree(at, "/api/..;/export", "POST") in (400, 403)
    assert agree(at, "/api/caf%C3%A9", "POST") == 200


def test_agrees_with_a_view_that_folds_paths(make_rule: MakeRule) -> None:
    make_rule("export", quota=2, path_kind="exact", path="/api/export/")
    make_rule("all", quota=9)
    assert [agree("/gateway/folding/", uri) for uri in ("/API/Export", "/api/export;x", "/api/export")] == [
        200,
        200,
        429,
    ]
    explanation = explain(Question(path="/Api/export", ip=CLIENT, gateway="/gateway/folding/"))
    assert {each.rule.slug for each in explanation.applying} == {"all", "export"}
    assert agree("/gateway/", "/api/export;x") == 400


def test_of_each_rule_it_says_whether_it_applies(make_rule: MakeRule) -> None:
    make_rule("billing", quota=5, scope="billing", partition_by=["header:X-Org"])
    make_rule("view", quota=5, view_name="hello")
    explanation = explain(
        Question(path="/x", ip=CLIENT, gateway="/gateway/", headers=(("X-Org", "acme"), ("X-Forwarded-For", "6.6.6.6")))
    )
    [each] = explanation.applying
    assert (each.rule.slug, each.entry_point, each.value) == ("billing", "gateway", "header:X-Org:acme")
    assert explanation.entry_points == ("gateway",)
    assert agree("/gateway/", "/x", X_Org="acme") == 200
    assert explain(Question(path="/x", ip=CLIENT, gateway="/gateway/nginx/")).applying == ()


def test_a_user_is_whom_the_gateway_names(make_rule: MakeRule) -> None:
    user = User.objects.create_user("ann")
    make_rule("mine", quota=1, partition_by=["user"])
    at = "/gateway/users/"
    assert [agree(at, "/x", user=str(user.pk)) for _ in range(2)] == [200, 429]
    assert explain(Question(path="/x", ip=CLIENT, user="ann", gateway=at)).identities == {"user": str(user.pk)}
    forged = Question(path="/x", ip=CLIENT, gateway=at, headers=(("X-User-Id", str(user.pk)),))
    assert explain(forged).response.allowed


def test_denied_exempt_and_undecided_requests_say_so(make_rule: MakeRule) -> None:
    make_rule("all")
    bypasses = {
        uri: explain(Question(path=uri, ip=CLIENT, gateway="/gateway/")).bypass for uri in ("/open/x", "/a/..;/x")
    }
    assert bypasses == {"/open/x": "exempt", "/a/..;/x": "undecided"}


def test_a_denied_caller_s_access_entry_is_named() -> None:
    AccessEntry.objects.create(action="deny", kind="ip", value=CLIENT)
    assert explain(Question(path="/x", ip=CLIENT, gateway="/gateway/")).bypass == "denied"
    assert agree("/gateway/", "/x") == 403


@pytest.mark.parametrize("trusted", [["forwarded", "10.0.0.0/8"], ["x-real-ip", "10.0.0.0/8"], 2, ["203.0.113.0/24"]])
def test_the_address_is_the_client_s_whatever_is_trusted(make_rule: MakeRule, trusted: Any) -> None:
    make_rule("all", quota=1, partition_by=["ip"])
    with override_settings(RATELIMITER={"TRUSTED_PROXIES": trusted}):
        explanation = explain(Question(path="/x", ip=CLIENT, gateway="/gateway/"))
    assert explanation.identities == {"ip": CLIENT}
    assert explanation.unknown == ()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("gateway", {"gateway": "/admin/"}),
        ("ip", {"ip": ""}),
        ("user", {"user": "ann"}),
        ("session", {"session": "x"}),
        ("view", {"view": "hello", "path": ""}),
        ("path", {"path": "http://[x", "gateway": "/gateway/envoy<path:path>"}),
    ],
)
def test_what_a_gateway_cannot_say_is_an_error(field: str, given: dict[str, str]) -> None:
    asked = {"path": "/x", "ip": CLIENT, "gateway": "/gateway/", **given}
    with pytest.raises(QuestionError) as error:
        explain(Question(**asked))  # type: ignore[arg-type]
    assert error.value.field == field


def test_page_command_and_api_ask_for_it(make_rule: MakeRule, operator: Callable[..., Client]) -> None:
    make_rule("all", quota=1, partition_by=["ip"], path_kind="exact", path="/x")
    out = io.StringIO()
    arguments = ("GET", "/x", "--ip", CLIENT, "--gateway", "/gateway/")
    call_command("ratelimit", "explain", *arguments, "--json", stdout=out)
    assert json.loads(out.getvalue())["entry_points"] == ["gateway"]
    client = operator("view_rule", "view_usage_report")
    page = client.post(
        reverse("admin:django_ratelimiter_explain"), {"path": "/x", "ip": CLIENT, "gateway": "/gateway/nginx/"}
    )
    assert page.context["explanation"].entry_points == ("gateway",)
    assert "Decided by the view that gateways ask." in page.content.decode()
    assert '<option value="/gateway/nginx/" selected>' in page.content.decode()
    wrong = client.post(reverse("admin:django_ratelimiter_explain"), {"path": "/x", "gateway": "/gateway/"})
    assert "gateway always sends it" in str(wrong.context["form"].errors["ip"])


@pytest.mark.urls("tests.inspection.urls")
def test_a_site_without_such_a_view_is_not_asked_about_it(operator: Callable[..., Client]) -> None:
    page = operator("view_rule").get(reverse("admin:django_ratelimiter_explain"))
    assert "gateway" not in page.context["form"].fields
