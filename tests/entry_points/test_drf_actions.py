"""Actions of a viewset: each may have a scope of its own."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import include, path
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

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
