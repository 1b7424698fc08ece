"""Small pages; every answer carries the id of the process that gave it.

The plain views are limited by the middleware alone. The DRF views authenticate by a token or the session, inside
the view, and use `RuleThrottle`, so that rules about the user are decided once the user is known.
"""

import os

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ratelimiter.throttling import RuleThrottle


def _page(name: str) -> JsonResponse:
    return JsonResponse({"page": name, "process": os.getpid()})


def index(request: HttpRequest) -> JsonResponse:
    """What there is to see; no rule is about this page."""
    pages = ["/prices/", "/orders/", "/sign-in/", "/api/search/", "/api/export/", "/api/reports/", "/admin/"]
    return JsonResponse({"page": "index", "process": os.getpid(), "pages": pages})


def prices(request: HttpRequest) -> JsonResponse:
    """A public page, limited by address."""
    return _page("prices")


def orders(request: HttpRequest) -> JsonResponse:
    """For programs that send an API key, limited by the key."""
    return _page("orders")


@csrf_exempt
@require_POST
def sign_in(request: HttpRequest) -> JsonResponse:
    """Signs nobody in: it stands for any form that passwords could be guessed with, limited by address."""
    return _page("sign-in")


class _Page(APIView):
    throttle_classes = (RuleThrottle,)

    def get(self, request: Request) -> Response:
        """Say who asked and which process answered."""
        return Response({"page": type(self).__name__.lower(), "process": os.getpid(), "user": str(request.user)})


class Search(_Page):
    """Limited by user, and for free users by address too."""


class Export(_Page):
    """Limited by user, in two ways at once."""


class Reports(_Page):
    """Limited for everybody together."""
