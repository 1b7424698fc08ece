"""The user of a page, what they may see, and the URLs of the pages that they may open."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib import admin
from django.contrib.admin.sites import AdminSite, all_sites
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from ..models import Rule, TierAssignment, UsageBucket


class Viewer:
    """A staff user on one admin site. The URL of a page that this site lacks is ""."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        current = getattr(request, "current_app", None)
        self.site: AdminSite = next((site for site in all_sites if site.name == current), admin.site)

    @cached_property
    def sees_rules(self) -> bool:
        """True if they may see rules, their versions and their problems."""
        return self._may_view(Rule)

    @cached_property
    def sees_usage(self) -> bool:
        """True if they may see usage, and which callers were rejected."""
        return self._may_view(UsageBucket)

    @cached_property
    def sees_callers(self) -> bool:
        """True if they may see callers, or act on them."""
        return self._may_view(TierAssignment) or self.may("unblock_caller") or self.may("grant_caller")

    @property
    def sees_engine(self) -> bool:
        """True if they may see the state of Redis."""
        return self.sees_rules or self.sees_usage

    @cached_property
    def sees_overview(self) -> bool:
        """True if the overview has a page that they may open, or an action for them."""
        return self.sees_engine or self.sees_callers or self.may("switch_enforcement")

    @property
    def searches(self) -> bool:
        """True if the search could find anything for them."""
        return self.sees_engine or self.sees_callers

    def may(self, permission: str) -> bool:
        """Return whether they have this permission of the app."""
        return bool(self.request.user.has_perm(f"django_ratelimiter.{permission}"))

    def url(self, name: str, *args: Any, **query: str) -> str:
        """Return the URL of a page of this app: `url("rule_change", 7)`; "" if there is no such page."""
        try:
            address = reverse(f"admin:django_ratelimiter_{name}", args=args, current_app=self.site.name)
        except NoReverseMatch:
            return ""
        return f"{address}?{urlencode(query)}" if query else address

    def overview_url(self) -> str:
        """Return the URL of the app's front page; "" if the site has none."""
        try:
            return reverse("admin:app_list", args=["django_ratelimiter"], current_app=self.site.name)
        except NoReverseMatch:
            return ""

    def caller_url(self, kind: str, value: str) -> str:
        """Return the URL of a caller's page; "" without the permission to see callers."""
        return self.url("caller", kind=kind, value=value) if self.sees_callers else ""

    def digest_url(self, digest: str, **query: str) -> str:
        """Return the URL of the caller's page for a digest; "" without the permission."""
        return self.url("caller", digest=digest, **query) if self.sees_callers else ""

    def _may_view(self, model: type[Any]) -> bool:
        if not self.site.is_registered(model):
            return False
        return bool(self.site.get_model_admin(model).has_view_permission(self.request))
