"""The system checks of views that gateways ask: that the gateway is believed, and nobody else."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from django.test import override_settings
from django.urls import include, path
from django.views.decorators.http import require_safe

from django_ratelimiter import checks, gateway

from ..urls import say_hello


def found(trusted: Any, *urlpatterns: Any) -> list[str]:
    """The ids of what is found, and the routes that it is about."""
    module: Any = ModuleType("urls_of_a_gateway")
    module.urlpatterns = [path("hello/", say_hello), *urlpatterns]
    with override_settings(ROOT_URLCONF=module, RATELIMITER={"TRUSTED_PROXIES": trusted}):
        return [f"{message.id}: {message.msg}" for message in checks.check_gateways()]


ASKED = path("gateway/", include([path("nginx/", require_safe(gateway.view())), path("envoy", gateway.aview())]))


def test_an_error_where_nobody_may_ask() -> None:
    [message] = found([], ASKED)
    assert message.startswith("django_ratelimiter.E010: ")
    assert "each gateway that asks /gateway/nginx/, /gateway/envoy gets a 403" in message


@pytest.mark.parametrize("trusted", [1, [2], [1, "forwarded"]])
def test_a_warning_where_everybody_may(trusted: Any) -> None:
    [message] = found(trusted, ASKED)
    assert message.startswith("django_ratelimiter.W022: ")
    assert "can reach /gateway/nginx/, /gateway/envoy is trusted" in message


@pytest.mark.parametrize("trusted", [["10.0.0.0/8"], ["unix"], ["10.0.0.0/8", "forwarded"]])
def test_nothing_where_the_gateway_is_named(trusted: Any) -> None:
    assert found(trusted, ASKED) == []


@pytest.mark.parametrize("trusted", [[], 1])
def test_nothing_where_no_gateway_asks(trusted: Any) -> None:
    assert found(trusted) == []


def test_a_wrong_setting_is_anothers_affair() -> None:
    assert found("everybody", ASKED) == []
