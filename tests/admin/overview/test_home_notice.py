"""The notice on the admin's home page while rules are not enforced as saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import pytest
from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import reverse

from django_ratelimiter.admin.enforcement import HOME_TEMPLATE
from django_ratelimiter.admin.rules.admin import RuleAdmin
from django_ratelimiter.models import Rule
from django_ratelimiter.rules import cache

from ..pages import shown
from .test_overview import nowhere

pytestmark = pytest.mark.django_db

HOME, OVERVIEW = reverse("admin:index"), reverse("admin:app_list", args=["django_ratelimiter"])
NOTICE = 'id="ratelimiter-stopped"'
STOPPED = "All enforcement is stopped: no request is limited"
DEGRADED = "Redis does not answer this process"

#: The other order; most projects have Django's apps first, as the settings of the tests have.
ABOVE = ["django_ratelimiter", *(app for app in settings.INSTALLED_APPS if app != "django_ratelimiter")]


@pytest.fixture(autouse=True)
def _own_breakers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ratelimiter.engine.breaker._breakers", WeakValueDictionary())


@pytest.fixture(params=[ABOVE, settings.INSTALLED_APPS], ids=["above", "below"])
def order(request: pytest.FixtureRequest) -> Any:
    """Our app above django.contrib.admin, and below it."""
    with override_settings(INSTALLED_APPS=request.param):
        yield


@pytest.mark.usefixtures("order")
def test_it_is_there_while_enforcement_is_stopped(admin_client: Client, rule: Rule) -> None:
    assert NOTICE not in shown(admin_client.get(HOME))
    cache.switch_enforcement(False)
    page = shown(admin_client.get(HOME))
    assert page.count(NOTICE) == 1
    assert STOPPED in page
    assert f'<a href="{OVERVIEW}">Overview</a>' in page
    assert "Site administration" in page


def test_it_is_there_while_redis_is_not(admin_client: Client, rule: Rule) -> None:
    with override_settings(CACHES=nowhere()):
        page = shown(admin_client.get(HOME))
    assert DEGRADED in page
    assert page.count(NOTICE) == 1
    assert DEGRADED not in shown(admin_client.get(HOME))


@pytest.mark.parametrize(("codename", "sees"), [("view_rule", True), ("view_user", False)])
def test_it_is_for_staff_of_this_app(operator: Callable[..., Client], codename: str, sees: bool) -> None:
    cache.switch_enforcement(False)
    assert (NOTICE in shown(operator(codename).get(HOME))) is sees


def test_the_log_in_page_says_nothing(client: Client) -> None:
    cache.switch_enforcement(False)
    assert NOTICE not in shown(client.get(HOME, follow=True))


@pytest.mark.parametrize(
    "template",
    [
        '{% extends "admin/index.html" %}{% block content %}ours{{ block.super }}{% endblock %}',
        '{% extends "admin/index.html" %}{% load ratelimiter_admin %}'
        "{% block messages %}{% limiter_notice %}ours{{ block.super }}{% endblock %}",
    ],
)
@pytest.mark.usefixtures("order")
def test_a_template_of_the_projects_own(admin_client: Client, tmp_path: Path, template: str, admin_user: User) -> None:
    """It is extended, and may ask for the notice itself: it is shown once."""
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin/index.html").write_text(template)
    cache.switch_enforcement(False)
    with override_settings(TEMPLATES=[{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]):
        page = shown(admin_client.get(HOME))
    assert "ours" in page
    assert page.count(NOTICE) == 1


def test_the_template_that_a_site_has_chosen_is_left_to_it() -> None:
    class OwnSite(AdminSite):
        index_template = "office/index.html"

    for site, template in ((OwnSite(), "office/index.html"), (AdminSite(), HOME_TEMPLATE)):
        site.register(Rule, RuleAdmin)
        assert site.index_template == template
    without = AdminSite()
    without.register(User)
    assert without.index_template is None
