"""The middleware in the wrappers of tools that measure it, on an event loop."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers import base
from django.test import AsyncClient, override_settings

from django_ratelimiter.middleware import RateLimitMiddleware

from .conftest import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.entry_points.urls")]


def wrapped(get_response: Any) -> Any:
    """Wrap each hook in a plain function."""
    made = RateLimitMiddleware(get_response)
    for name in ("process_view", "process_template_response", "process_exception"):
        hook = getattr(made, name)
        plain = wraps(hook)(lambda *given, hook=hook: hook(*given))
        plain.__self__ = made  # Django reads it
        setattr(made, name, plain)
    return made


wrapped.sync_capable = wrapped.async_capable = True  # type: ignore[attr-defined]


@pytest.fixture(params=["sentry", "plain"])
def wrapper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "plain":
        with override_settings(MIDDLEWARE=[f"{__name__}.wrapped"]):
            yield
        return
    module = pytest.importorskip("sentry_sdk.integrations.django.middleware", reason="sentry-sdk is not installed")
    monkeypatch.setattr(base, "import_string", base.import_string)  # what the next line replaces is put back
    monkeypatch.setattr(base.BaseHandler, "load_middleware", base.BaseHandler.load_middleware)
    module.patch_django_middlewares()
    yield


@pytest.mark.usefixtures("wrapper")
def test_a_wrapped_middleware_decides(make_rule: MakeRule, async_client: AsyncClient) -> None:
    make_rule("all", quota=2)
    get = async_to_sync(async_client.get)
    assert [get(path).status_code for path in ("/native/", "/throttled/", "/nowhere/")] == [200, 200, 429]
