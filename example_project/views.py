"""Small pages; every response contains the id of its server process.

Only the middleware limits the plain views. The DRF views authenticate by a token or the session, inside
the view, and use `RuleThrottle`, so that rules by user are decided when the user is known.
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
    """The list of pages; no rule applies to this page."""
    pages = [
        "/prices/",
        "/orders/",
        "/sign-in/",
        "/api/search/",
        "/api/export/",
        "/api/reports/",
        "/api/invoices/",
        "/admin/",
    ]
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
    """A dummy login: like any form with a password to guess, limited by address."""
    return _page("sign-in")


class _Page(APIView):
    throttle_classes = (RuleThrottle,)

    def get(self, request: Request) -> Response:
        """Return who asked and which process answered."""
        return Response({"page": type(self).__name__.lower(), "process": os.getpid(), "user": str(request.user)})


class Search(_Page):
    """Limited by user, and for free users by address too."""


class Export(_Page):
    """Limited by user, in two ways at once."""


class Reports(_Page):
    """One limit for all callers together."""


class Invoices(_Page):
    """One limit for all users of an account together."""
