"""The reference in the body that REST framework writes of a rejection."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client, override_settings
from rest_framework.response import Response
from rest_framework.views import exception_handler

from ..making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]

NAMED = {"Authorization": "Name ann", "X-Name": "ann"}


@pytest.fixture(autouse=True)
def _rejecting(make_rule: MakeRule, people: None) -> None:
    make_rule("per-user", quota=1, partition_by=["user"])


def rejected(**more: Any) -> Any:
    client = Client(headers=NAMED, **more)
    client.get("/api/")
    response = client.get("/api/")
    assert response.status_code == 429
    return response


def test_is_beside_the_text_that_the_framework_writes() -> None:
    response = rejected()
    reference = response["X-RateLimit-Reference"]
    assert reference.startswith("per-user#")
    body = response.json()
    assert list(body) == ["detail", "reference"]
    assert body["reference"] == reference
    assert body["detail"].startswith("Request was throttled. Expected available in ")


def test_is_in_the_pages_of_the_browsable_api() -> None:
    response = rejected()
    page = Client(headers={**NAMED, "Accept": "text/html"}).get("/api/").content.decode()
    assert response["X-RateLimit-Reference"] in page


def test_on_an_event_loop() -> None:
    get = async_to_sync(AsyncClient().get)
    get("/api/", headers=NAMED)
    response = get("/api/", headers=NAMED)
    assert response.json()["reference"] == response["X-RateLimit-Reference"]


def own_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    response = exception_handler(error, context)
    if response is not None:
        response.data = {"errors": [str(response.data["detail"])]}
    return response


def test_a_body_of_the_projects_own_stays_as_it_is() -> None:
    with override_settings(REST_FRAMEWORK={"EXCEPTION_HANDLER": f"{__name__}.own_handler"}):
        body = rejected().json()
    assert list(body) == ["errors"]


def test_the_body_has_it_where_the_field_is_not_sent(settings: Any) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "HEADERS": ["ratelimit"]}
    response = rejected()
    assert "X-RateLimit-Reference" not in response
    assert response.json()["reference"].startswith("per-user#")


def test_an_error_of_the_views_own_has_none(client: Client) -> None:
    body = client.get("/api/", headers={"Authorization": "Name nobody", "X-Name": "nobody"})
    assert (body.status_code < 429, "reference" in body.content.decode()) == (True, False)


def test_a_429_that_the_view_sends_itself_has_none(client: Client) -> None:
    assert client.get("/busy/", headers=NAMED).json() == {"detail": "Busy."}
