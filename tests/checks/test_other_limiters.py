"""The checks of other limiters in a project."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from django.test import override_settings

from django_ratelimiter import checks

from .test_checks import ids


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RATELIMIT_VIEW", "shop.views.limited", "RESPONSE"),
        ("RATELIMIT_USE_CACHE", "limits", "CACHE_ALIAS"),
        ("RATELIMIT_CACHE_PREFIX", "x:", "NAMESPACE"),
    ],
)
def test_settings_of_django_ratelimit_without_a_meaning_here(name: str, value: Any, says: str) -> None:
    assert checks.check_settings_of_django_ratelimit() == []
    with override_settings(**{name: value}):
        [message] = checks.check_settings_of_django_ratelimit()
    assert ids([message]) == ["W010"]
    assert (name in message.msg, says in str(message.hint)) == (True, True)


@override_settings(
    RATELIMIT_ENABLE=True, RATELIMIT_EXCEPTION_CLASS=PermissionError, RATELIMIT_IPV4_MASK=24, RATELIMIT_FAIL_OPEN=False
)
def test_settings_that_keep_their_meaning() -> None:
    assert checks.check_settings_of_django_ratelimit() == []


def test_where_django_ratelimit_is_still_there_they_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "django_ratelimiter.checks.other_limiters.find_spec", lambda name: ModuleSpec(name, loader=None)
    )
    with override_settings(RATELIMIT_VIEW="shop.views.limited"):
        assert checks.check_settings_of_django_ratelimit() == []
