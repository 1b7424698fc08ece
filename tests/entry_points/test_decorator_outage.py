"""What a rate of `@ratelimit` does while Redis is out of reach."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_ratelimiter.decorators import Ratelimited, get_usage, is_ratelimited, ratelimit

from ..limiter.test_limiter import Broken

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("_outage")]


@pytest.fixture
def _outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.backend._engine", Broken())


def requests(number: int) -> list[HttpRequest]:
    return [RequestFactory().get("/", REMOTE_ADDR="203.0.113.1") for _ in range(number)]


def allowed(either: Any, times: int, **arguments: Any) -> list[bool]:
    """Whether a view with a rate of 4 a day answers each of so many requests."""
    given: dict[str, Any] = {"key": "ip", "rate": "4/d", "group": "outage", **arguments}

    def view(request: HttpRequest) -> bool:
        return True

    async def aview(request: HttpRequest) -> bool:
        return True

    limited: Any = either(*map(ratelimit(**given), (view, aview)))
    answers = []
    for request in requests(times):
        try:
            answers.append(limited(request))
        except Ratelimited:
            answers.append(False)
    return answers


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, [True, True, False]),  # half of the rate in each process
        ("local", [True, True, False]),
        ("open", [True, True, True]),
        ("closed", [False, False, False]),
    ],
)
def test_a_rate_has_the_failure_policy_that_it_names(either: Any, policy: str | None, expected: list[bool]) -> None:
    assert allowed(either, 3, failure_policy=policy) == expected


@pytest.mark.parametrize(("fail_open", "expected"), [(True, [True] * 3), (False, [False] * 3)])
def test_ratelimit_fail_open_means_what_it_means_in_django_ratelimit(
    either: Any, fail_open: bool, expected: list[bool]
) -> None:
    with override_settings(RATELIMIT_FAIL_OPEN=fail_open):
        assert allowed(either, 3) == expected
        assert allowed(either, 3, failure_policy="local", group="other") == [True, True, False]


@pytest.mark.parametrize(("fail_open", "limited"), [(True, False), (False, True)])
def test_without_blocking_the_request_tells(fail_open: bool, limited: bool) -> None:
    [request] = requests(1)
    with override_settings(RATELIMIT_FAIL_OPEN=fail_open):
        ratelimit(key="ip", rate="4/d", block=False)(lambda request: None)(request)
        assert is_ratelimited(request, group="a", key="ip", rate="4/d", increment=True) is limited
        usage = get_usage(request, group="a", key="ip", rate="4/d")
    assert request.limited is limited  # type: ignore[attr-defined]
    assert usage == ({"count": 0, "limit": 0, "should_limit": True, "time_left": -1} if limited else None)


@ratelimit(key="ip", rate="4/d", failure_policy="closed")
def closed(request: HttpRequest) -> HttpResponse:
    return HttpResponse("never")


urlpatterns = [path("closed/", closed)]


@override_settings(ROOT_URLCONF=__name__)
def test_closed_is_an_outage_and_not_the_clients_doing(client: Client) -> None:
    answer = client.get("/closed/")
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"key": "ip", "rate": "4/d", "failure_policy": "opened"}, "'local', 'open', 'closed', not 'opened'"),
        ({"group": "mail", "failure_policy": "open"}, "needs a rate"),
    ],
)
def test_what_cannot_be_a_policy_is_an_error_at_once(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=says):
        ratelimit(**arguments)
