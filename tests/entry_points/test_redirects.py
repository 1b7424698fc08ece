"""Redirects that Django makes for the spelling of a path are free, so a visit costs one unit."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.middleware.common import CommonMiddleware
from django.test import Client, modify_settings, override_settings
from django.urls import path
from django.utils import translation

from django_ratelimiter.explain import Question, explain

from ..making import MakeRule
from .urls import plain

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

urlpatterns = [
    path("plain/", plain),
    path("<path:page>.html", plain),
    *i18n_patterns(path("about/", plain, name="about")),
]

LOCALE = modify_settings(MIDDLEWARE={"prepend": "django.middleware.locale.LocaleMiddleware"})


class OwnCommonMiddleware(CommonMiddleware):
    """A project's own, as for another kind of redirect."""


def statuses(get: Any, *paths: str) -> list[int]:
    with translation.override(None):
        return [get(path).status_code for path in paths]


def test_a_missing_slash_costs_nothing(get: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=2)
    assert statuses(get, "/plain", "/plain/", "/plain", "/plain/", "/plain", "/plain/") == [301, 200] * 2 + [301, 429]


def test_a_missing_language_costs_nothing(get: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    with LOCALE:
        assert statuses(get, "/about/", "/about", "/en/about", "/en/about/", "/en/about/") == [302, 302, 301, 200, 429]


def test_what_is_not_redirected_counts(get: Any, make_rule: MakeRule) -> None:
    make_rule("all", quota=3)
    with override_settings(APPEND_SLASH=False):
        assert statuses(get, "/plain", "/about/", "/nothing", "/nothing") == [404, 404, 404, 429]


def test_a_middleware_of_the_projects_own_redirects_for_free_too(client: Client, make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    own = {"remove": "django.middleware.common.CommonMiddleware", "prepend": f"{__name__}.OwnCommonMiddleware"}
    with modify_settings(MIDDLEWARE=own):
        assert statuses(client.get, "/plain", "/plain", "/plain/", "/plain/") == [301, 301, 200, 429]
    with modify_settings(MIDDLEWARE={"remove": "django.middleware.common.CommonMiddleware"}):
        assert statuses(client.get, "/plain") == [429]  # nobody redirects


def test_it_is_explained(make_rule: MakeRule) -> None:
    make_rule("all")
    assert [explain(Question(path=path)).bypass for path in ("/plain", "/plain/")] == ["redirect", ""]
