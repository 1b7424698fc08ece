"""The checks of the paths that rules and settings name."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.conf.urls.i18n import i18n_patterns
from django.contrib import admin
from django.test import override_settings
from django.urls import include, path
from django.utils.translation import gettext_lazy
from rest_framework.decorators import action
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_ratelimiter.checks import views
from django_ratelimiter.checks.common import SYMPTOMS
from django_ratelimiter.decorators import ratelimit
from django_ratelimiter.rules.routes import for_no_view
from django_ratelimiter.rules.ruleset import rule_from

from ..admin import own_site
from ..making import make_rule
from ..rules.build import rule_data
from ..urls import say_hello
from .test_checks import ids


class Scoped(APIView):
    throttle_scope = "uploads"


@ratelimit("previews")
class Decorated(APIView): ...


class ScopedByAction(ViewSet):
    throttle_scope = None

    @action(detail=False, throttle_scope="exports")
    def export(self, request: Any) -> None: ...

    @ratelimit("imports")
    def list(self, request: Any) -> None: ...


@ratelimit("mailing")
def send(request: Any) -> None: ...


router = SimpleRouter()
router.register("files", ScopedByAction, basename="file")

urlpatterns = [
    path("items/<int:pk>/", say_hello, name="item"),
    path("shop/", include(([path("basket/<slug:name>/", say_hello, name="basket")], "shop"))),
    path("uploads/", Scoped.as_view()),
    path("previews/", Decorated.as_view()),
    path("send/", send),
    *i18n_patterns(path(gettext_lazy("about/"), say_hello, name="about")),
    *router.urls,
]

HERE = pytest.mark.urls(__name__)


@HERE
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"view_name": "item"}, None),
        ({"view_name": "shop:basket"}, None),
        ({"view_name": "tests.checks.test_paths.Scoped"}, None),
        ({"view_name": "about"}, None),
        ({"view_name": "basket"}, "none has the view name 'basket'. Did you mean 'shop:basket'?"),
        ({"view_name": "items"}, "none has the view name 'items'. Did you mean 'item'?"),
        ({"path_kind": "route", "path": "items/<int:pk>/"}, None),
        ({"path_kind": "route", "path": "shop/basket/<slug:name>/"}, None),
        ({"path_kind": "route", "path": "de/about/"}, None),
        ({"path_kind": "route", "path": "items/<int:id>/"}, "'items/<int:id>/'. Did you mean 'items/<int:pk>/'?"),
        ({"path_kind": "route", "path": "basket/<slug:name>/"}, "Did you mean 'shop/basket/<slug:name>/'?"),
        ({"path_kind": "exact", "path": "/nothing/here/"}, None),  # its 404 is limited
        ({"scope": "uploads"}, None),
        ({"scope": "exports"}, None),
        ({"scope": "import"}, "none has the scope 'import'. Did you mean 'imports'?"),
        ({"scope": "preview"}, "none has the scope 'preview'. Did you mean 'previews'?"),
        ({"scope": "export"}, "none has the scope 'export'. Did you mean 'exports'?"),
        ({"scope": "mailing"}, None),
        ({"scope": "mailings"}, "none has the scope 'mailings'. Did you mean 'mailing'?"),
        ({"scope": "mail"}, None),  # any code may ask for it
        ({"scope": "upload"}, "none has the scope 'upload'. Did you mean 'uploads'?"),
        ({"view_name": "items", "mode": "off"}, None),
    ],
)
def test_rules_for_what_the_urls_lack(fields: dict[str, Any], says: str | None) -> None:
    make_rule("lost", **fields)
    messages = views.check_targets()
    assert ids(messages) == (["W019"] if says else [])
    assert says is None or ("Rule lost " in messages[0].msg and says in messages[0].msg)
    assert all(SYMPTOMS in (message.hint or "") for message in messages)


@pytest.mark.django_db
def test_without_urls_nothing_is_said_of_them() -> None:
    make_rule("lost", view_name="items")
    with override_settings():
        del settings.ROOT_URLCONF
        assert views.check_targets() == []
        assert not for_no_view([rule_from(rule_data(scope="nightly"))])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("exempt", "fields", "fires"),
    [
        (None, {"path_kind": "exact", "path": "/admin/login/"}, ["W012"]),
        (None, {"path_kind": "prefix", "path": "/static/"}, ["W012"]),
        (None, {"path_kind": "route", "path": "admin/login/"}, ["W012"]),
        (None, {"path_kind": "exact", "path": "/admin/login/", "scope": "mail"}, []),
        (["/hello/"], {"path_kind": "prefix", "path": "/hello/"}, ["W012"]),
        (None, {"path_kind": "prefix", "path": "/"}, []),
        (None, {"path_kind": "route", "path": ""}, []),
        (None, {}, []),
        (["/static/"], {}, ["W021"]),
        (["/static/", "/admin/"], {}, []),
        (["/static/"], {"path_kind": "prefix", "path": "/admin/"}, ["W021"]),
        (["/static/"], {"path_kind": "exact", "path": "/admin/login/"}, []),
        (["/static/"], {"mode": "shadow"}, []),
    ],
)
def test_rules_for_what_is_exempt_and_rules_that_may_reject_who_would_correct_them(
    exempt: list[str] | None, fields: dict[str, Any], fires: list[str]
) -> None:
    make_rule("left-alone", **fields)
    with override_settings(RATELIMITER={"EXEMPT_PATHS": exempt}):
        messages = views.check_exempt() + views.check_admin()
    assert ids(messages) == fires
    assert all("left-alone" in message.msg for message in messages)
    assert "W012" not in fires or SYMPTOMS in (messages[0].hint or "")
    assert "W021" not in fires or "/admin/django_ratelimiter/rule/" in messages[0].msg


@pytest.mark.django_db
def test_each_admin_is_named_once_in_whatever_languages_its_path_is() -> None:
    make_rule("all")
    sites = (path("admin/", admin.site.urls), path("office/", own_site.office.urls))
    with override_settings(ROOT_URLCONF=tuple(i18n_patterns(*sites)), RATELIMITER={}):
        [message] = views.check_admin()
    assert "/office/django_ratelimiter/rule/" in message.msg
