"""Actions of a viewset: each may have a scope of its own."""

from __future__ import annotations

import pytest
from django.test import Client, override_settings
from django.urls import include, path
from rest_framework.authentication import TokenAuthentication
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from django_ratelimiter.checks.views import check_views
from django_ratelimiter.rules.routes import views
from django_ratelimiter.throttling import RuleThrottle

from ..making import MakeRule

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


class Reports(ViewSet):
    throttle_classes = (RuleThrottle,)
    throttle_scope = None

    def list(self, request: Request) -> Response:
        return Response([])

    @action(detail=False, throttle_scope="export")
    def export(self, request: Request) -> Response:
        return Response("exported")


router = SimpleRouter()
router.register("reports", Reports, basename="report")
urlpatterns = [path("", include(router.urls))]


def test_a_rule_with_the_scope_of_an_action_is_for_that_action(client: Client, make_rule: MakeRule) -> None:
    make_rule("exports", scope="export", quota=1)
    assert [client.get("/reports/export/").status_code for _ in range(2)] == [200, 429]
    assert client.get("/reports/").status_code == 200


def test_the_form_of_a_rule_knows_the_scope() -> None:
    assert [(view.name, view.scopes) for view in views()] == [("report-list", ()), ("report-export", ("export",))]


class Tokens(ViewSet):
    """It knows its user too late, for it has no throttle of ours."""

    authentication_classes = (TokenAuthentication,)
    throttle_scope = None

    @action(detail=False, throttle_scope="export")
    def export(self, request: Request) -> Response:
        return Response("exported")


@pytest.mark.parametrize(("scope", "found"), [("export", ["django_ratelimiter.W004"]), ("other", [])])
def test_a_check_knows_the_scope_of_an_action(make_rule: MakeRule, scope: str, found: list[str]) -> None:
    make_rule("exports", scope=scope, partition_by=["user"])
    urls = (path("tokens/export/", Tokens.as_view({"get": "export"}, throttle_scope="export")),)
    with override_settings(ROOT_URLCONF=urls):
        assert [message.id for message in check_views()] == found
