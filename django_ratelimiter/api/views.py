"""The caller's own limits as JSON."""

from __future__ import annotations

from typing import Any, Final

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ..exceptions import AccessDenied
from ..identity import identify
from .me import own_report
from .serializers import RateLimitOwnReportSerializer
from .throttling import MeThrottle

#: No cache may store the response.
PRIVATE: Final = {"Cache-Control": "private, no-store"}


class IsKnownCaller(BasePermission):
    """Authenticated users, and requests with a known API key."""

    def has_permission(self, request: Request, view: Any) -> bool:
        request.user  # noqa: B018  authenticates, which sets the user on Django's request
        identity = identify(request._request)
        return identity.user_id is not None or identity.api_key is not None


class MeView(APIView):
    """The caller's own tier, limits and last 30 days. Reading them uses no quota."""

    permission_classes = (IsKnownCaller,)
    throttle_classes: Any = (MeThrottle,)
    throttle_scope = "ratelimit-me"
    versioning_class = None
    serializer_class = RateLimitOwnReportSerializer

    def get(self, request: Request) -> Response:
        try:
            return Response(self.serializer_class(own_report(request._request)).data, headers=PRIVATE)
        except AccessDenied as error:
            raise PermissionDenied from error
