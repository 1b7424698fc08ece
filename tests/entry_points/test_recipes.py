"""The recipes for other frameworks work as they stand in the docs."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, modify_settings, override_settings
from django.urls import path
from django.views.decorators.http import condition

from ..making import Clock, MakeRule
from ..pages import PAGES, blocks, section, with_files

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("clock")]


def recipe(heading: str) -> SimpleNamespace:
    """What the first example under a heading defines."""
    block = blocks(section(with_files(PAGES["docs/howto/recipes.md"]), f"### {heading}"), "python")[0]
    module = ModuleType("recipe")
    exec(block, module.__dict__)
    return SimpleNamespace(**module.__dict__)


@pytest.fixture(scope="module")
def urls() -> Any:
    """The addresses of the recipe's API, which may be made once in a process only."""
    pytest.importorskip("ninja")
    module: Any = ModuleType("recipe_urls")
    module.urlpatterns = [path("api/", recipe("django-ninja").api.urls)]
    return module


def test_ninja_answers_as_the_limiter_does(client: Client, urls: Any) -> None:
    with override_settings(ROOT_URLCONF=urls):
        answers = [client.get("/api/search", {"text": "a"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json() == {"text": "a"}
    assert answers[0]["RateLimit"].endswith(";r=1;t=60")
    assert answers[2]["Retry-After"] == "60"
    assert answers[2]["Content-Type"] == "application/problem+json"


def test_ninjas_asynchronous_operations_too(async_client: AsyncClient, urls: Any) -> None:
    with override_settings(ROOT_URLCONF=urls):
        assert [async_to_sync(async_client.get)("/api/feed").status_code for _ in range(3)] == [200, 200, 429]


def test_ninja_knows_its_user_when_the_decorator_asks(client: Client, urls: Any, make_rule: MakeRule) -> None:
    make_rule("exports", quota=1, scope="export", partition_by=["user"])
    make_rule("per-ip", quota=4, partition_by=["ip"])
    for name in ("ann", "bob"):
        User.objects.create(username=name)
    with override_settings(ROOT_URLCONF=urls):
        tokens = ("ann", "ann", "bob", "none", "none", "none")
        answers = [client.get("/api/export", headers={"Authorization": f"Bearer {token}"}) for token in tokens]
    # what "exports" rejects, "per-ip" gets back
    assert [answer.status_code for answer in answers] == [200, 429, 200, 401, 401, 429]


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def asked(application: Any, address: str = "203.0.113.1") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    scope = {"type": "http", "method": "GET", "path": "/feed/", "headers": [], "client": [address, 1]}

    async def ask() -> tuple[Any, Any]:
        communicator = ApplicationCommunicator(application, scope)
        answer = await communicator.receive_output(), await communicator.receive_output()
        await communicator.wait()
        return answer

    start, body = async_to_sync(ask)()
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, body["body"]


def test_an_asgi_application_is_limited(make_rule: MakeRule) -> None:
    make_rule("feed", quota=1, scope="feed", partition_by=["ip"])
    make_rule("all", quota=3)
    application = recipe("Plain ASGI").RateLimited(hello, rules_of="feed")
    status, headers, body = asked(application)
    assert (status, body, headers["content-type"]) == (200, b"hello", "text/plain")
    assert headers["ratelimit"].startswith('"all";r=2;')
    status, headers, body = asked(application)
    assert (status, headers["retry-after"], headers["content-type"]) == (429, "86400", "application/problem+json")
    assert b"quota-exceeded" in body
    assert asked(application, "203.0.113.2")[0] == 200


def test_what_an_asgi_application_has_in_flight_ends(make_rule: MakeRule) -> None:
    make_rule("one", quota=1, algorithm="concurrency", limit={"window_seconds": 60})
    application = recipe("Plain ASGI").RateLimited(hello)
    assert [asked(application)[0] for _ in range(3)] == [200] * 3


def test_an_asgi_application_waits_its_turn(make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    make_rule("queue", quota=1, algorithm="leaky_bucket", limit={"window_seconds": 5, "burst": 2})
    found = recipe("Plain ASGI")
    monkeypatch.setattr(found.asyncio, "sleep", clock.asleep)
    for _ in range(2):
        asked(found.RateLimited(hello))
    assert clock.slept[-1] == 5


def test_what_is_no_request_passes() -> None:
    seen = []

    async def lifespan(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async_to_sync(recipe("Plain ASGI").RateLimited(lifespan))({"type": "lifespan"}, None, None)
    assert seen == ["lifespan"]


def test_lock_outs_of_a_name_grow(client: Client, clock: Clock, tmp_path: Path) -> None:
    """Somebody guesses again whenever that is allowed: five times at once, then after each wait."""
    file = tmp_path / "ratelimits.yaml"
    file.write_text(blocks(section(PAGES["docs/howto/recipes.md"], "## Login by address and name"), "yaml")[0])
    call_command("ratelimit", "apply", str(file))
    with override_settings(ROOT_URLCONF=(path("login/", lambda _: HttpResponse(status=401)),)):
        for _ in range(21):
            while (answer := client.post("/login/", {"username": "ann"})).status_code == 429:
                clock.sleep(int(answer["Retry-After"]))
    assert clock.slept == [600, 3000, 600, 82_200]


@condition(etag_func=lambda _request: '"1"')
def unchanged(request: HttpRequest) -> HttpResponse:
    return HttpResponse("text")


def test_a_response_that_is_not_modified_is_free(
    get: Any, make_rule: MakeRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rule("all", quota=2)
    made = recipe("Not modified").free_if_not_modified
    monkeypatch.setattr(f"{__name__}.free_if_not_modified", made, raising=False)
    middleware = modify_settings(MIDDLEWARE={"append": f"{__name__}.free_if_not_modified"})
    with middleware, override_settings(ROOT_URLCONF=(path("unchanged/", unchanged),)):
        answers = [get("/unchanged/", headers={"If-None-Match": tag}) for tag in ('"0"', '"1"', '"1"', '"0"', '"1"')]
    assert [answer.status_code for answer in answers] == [200, 304, 304, 200, 429]
    assert [answer["X-RateLimit-Remaining"] for answer in answers] == ["1", "1", "1", "0", "0"]
