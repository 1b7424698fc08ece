"""django-ninja answers a rejection by itself, also while DEBUG is on, and without a handler for our exception."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_ratelimiter.decorators import Ratelimited, ratelimit

from ..limiter.test_limiter import Broken
from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock", "debug")]

DECORATORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "costly": {"cost_after": lambda response: 1},
    "closed": {"failure_policy": "closed"},
}


@cache
def urls(*, own_handler: bool = False) -> Any:
    """A urlconf with an API, the same each time: ninja makes an API of one name once in a process."""
    ninja = pytest.importorskip("ninja")
    api = ninja.NinjaAPI(urls_namespace=f"own-{own_handler}")
    for name, options in DECORATORS.items():

        @api.get(f"/{name}", operation_id=name)
        @ratelimit(key="ip", rate="1/m", group=name, **options)
        def operation(request: HttpRequest) -> dict[str, str]:
            return {"hello": "world"}

    @api.get("/scoped")
    @ratelimit("scoped")
    def scoped(request: HttpRequest) -> dict[str, str]:
        return {"hello": "world"}

    if own_handler:

        @api.exception_handler(Ratelimited)
        def rejected(request: HttpRequest, error: Ratelimited) -> HttpResponse:
            return HttpResponse(f"own: {error.decision.allowed}", status=418)

    module: Any = ModuleType("ninja_urls")
    module.urlpatterns = [path("api/", api.urls)]
    return module


@pytest.fixture(params=[False, True])
def debug(request: pytest.FixtureRequest) -> Iterator[None]:
    with override_settings(ROOT_URLCONF=urls(), DEBUG=request.param):
        yield


@pytest.mark.parametrize("name", ["plain", "costly"])
def test_a_rejection_is_429_with_all_fields(client: Client, name: str) -> None:
    allowed, rejected = (client.get(f"/api/{name}") for _ in range(2))
    assert (allowed.status_code, rejected.status_code) == (200, 429)
    assert rejected.json() == {"detail": "You have sent more requests than allowed. Please try again in 60 seconds."}
    assert rejected["Retry-After"] == "60"
    assert rejected["RateLimit"].endswith(";r=0;t=60")
    assert rejected["Cache-Control"] == "no-store"


def test_a_rules_own_message_is_told(client: Client, make_rule: MakeRule) -> None:
    make_rule("scoped", quota=1, scope="scoped", partition_by=["ip"], message="Ask for a key.")
    answers = [client.get("/api/scoped") for _ in range(2)]
    assert answers[1].status_code == 429
    assert answers[1].json()["detail"].startswith("Ask for a key.")


def test_an_outage_is_503(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    answer = client.get("/api/closed")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


def test_a_handler_of_the_projects_own_goes_first(client: Client) -> None:
    with override_settings(ROOT_URLCONF=urls(own_handler=True)):
        answers = [client.get("/api/plain") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 418]
    assert answers[1].content == b"own: False"


def test_other_views_raise_the_usual_exception() -> None:
    with pytest.raises(Ratelimited) as raised:
        ratelimit(key="ip", rate="0/m")(lambda request: None)(RequestFactory().get("/"))
    assert type(raised.value) is Ratelimited
