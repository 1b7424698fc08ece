"""django-ninja answers a rejection by itself, also while DEBUG is on, and without a handler for our exception."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path

from django_ratelimiter.decorators import Ratelimited, ratelimit

from ..limiter.test_limiter import Broken
from .conftest import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock")]


def limited(key: str = "ip", rate: str = "1/m", **options: Any) -> Any:
    return ratelimit(key=key, rate=rate, **options)


def made(*, own_handler: bool = False) -> Any:
    """A urlconf with an API."""
    ninja = pytest.importorskip("ninja")
    api = ninja.NinjaAPI(urls_namespace=f"own-{own_handler}")

    @api.get("/plain")
    @limited()
    def plain(request: HttpRequest) -> dict[str, str]:
        return {"hello": "world"}

    @api.get("/later")
    @limited()
    async def later(request: HttpRequest) -> dict[str, str]:
        return {"hello": "world"}

    @api.get("/costly")
    @limited(cost_after=lambda response: 1)
    def costly(request: HttpRequest) -> dict[str, str]:
        return {"hello": "world"}

    @api.get("/closed")
    @limited(failure_policy="closed")
    def closed(request: HttpRequest) -> dict[str, str]:
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


@pytest.fixture(scope="module")
def urls() -> Any:
    return made()


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("name", ["plain", "costly"])
def test_a_rejection_is_429_with_all_fields(client: Client, urls: Any, name: str, debug: bool) -> None:
    with override_settings(ROOT_URLCONF=urls, DEBUG=debug):
        allowed, rejected = (client.get(f"/api/{name}") for _ in range(2))
    assert (allowed.status_code, rejected.status_code) == (200, 429)
    assert rejected.json() == {"detail": "You have sent more requests than allowed. Please try again in 60 seconds."}
    assert rejected["Retry-After"] == "60"
    assert rejected["RateLimit"].endswith(";r=0;t=60")
    assert rejected["Cache-Control"] == "no-store"


@pytest.mark.parametrize("debug", [False, True])
def test_so_is_one_on_an_event_loop(async_client: AsyncClient, urls: Any, debug: bool) -> None:
    with override_settings(ROOT_URLCONF=urls, DEBUG=debug):
        assert [async_to_sync(async_client.get)("/api/later").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("debug", [False, True])
def test_a_rules_own_message_is_told(client: Client, urls: Any, make_rule: MakeRule, debug: bool) -> None:
    make_rule("scoped", quota=1, scope="scoped", partition_by=["ip"], message="Ask for a key.")
    with override_settings(ROOT_URLCONF=urls, DEBUG=debug):
        answers = [client.get("/api/scoped") for _ in range(2)]
    assert answers[1].status_code == 429
    assert answers[1].json()["detail"].startswith("Ask for a key.")


@pytest.mark.parametrize("debug", [False, True])
def test_an_outage_is_503(client: Client, urls: Any, monkeypatch: pytest.MonkeyPatch, debug: bool) -> None:
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())
    with override_settings(ROOT_URLCONF=urls, DEBUG=debug):
        answer = client.get("/api/closed")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


@pytest.mark.parametrize("debug", [False, True])
def test_a_handler_of_the_projects_own_goes_first(client: Client, debug: bool) -> None:
    with override_settings(ROOT_URLCONF=_with_handler(), DEBUG=debug):
        answers = [client.get("/api/plain") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 418]
    assert answers[1].content == b"own: False"


@pytest.mark.usefixtures("urls")
def test_other_views_raise_the_usual_exception() -> None:
    view = limited(rate="0/m")(lambda request: None)
    with pytest.raises(Ratelimited) as raised:
        view(RequestFactory().get("/"))
    assert type(raised.value) is Ratelimited


_kept: list[Any] = []


def _with_handler() -> Any:
    """The same urlconf each time: ninja makes an API of one name once in a process."""
    if not _kept:
        _kept.append(made(own_handler=True))
    return _kept[0]
