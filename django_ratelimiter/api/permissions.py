"""Permissions of the views."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.auth import get_user_model
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from ..identity import identify
from ..inspection.acts import GRANT, UNBLOCK

VIEW_REPORTS: Final = "django_ratelimiter.view_usage_report"


class IsKnownCaller(BasePermission):
    """Authenticated users, and requests with a known API key."""

    def has_permission(self, request: Request, view: Any) -> bool:
        request.user  # noqa: B018  authenticates, which sets the user on Django's request
        identity = identify(request._request)
        return identity.user_id is not None or identity.api_key is not None


class _HasOne(BasePermission):
    """Users with one of these permissions. Callers of another model than the users have none."""

    names: tuple[str, ...] = ()

    def has_permission(self, request: Request, view: Any) -> bool:
        user: Any = request.user
        return isinstance(user, get_user_model()) and any(map(user.has_perm, self.names_for(view)))

    def names_for(self, view: Any) -> tuple[str, ...]:
        """Return the permissions for this view."""
        return self.names


class MayViewReports(_HasOne):
    """Users with the permission to view usage reports."""

    names = (VIEW_REPORTS,)


class MaySeeCallers(_HasOne):
    """Users who may see a caller's page."""

    names = ("django_ratelimiter.view_tierassignment", UNBLOCK, GRANT)


class MayExplain(_HasOne):
    """Users who may view rules. Counters, tiers and access entries need their own permissions."""

    names = ("django_ratelimiter.view_rule", "django_ratelimiter.change_rule")


class MayAct(_HasOne):
    """Users with the permission of the view's act."""

    def names_for(self, view: Any) -> tuple[str, ...]:
        return (view.act.permission,)
