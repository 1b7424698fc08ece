"""Who looks at a page, what they may see, and the addresses of the pages that they may open."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from django.contrib import admin
from django.contrib.admin.sites import AdminSite, all_sites
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode

from ...models import Rule, TierAssignment, UsageBucket


class Viewer:
    """A member of staff on one admin site. Pages that this site does not have, have the address ""."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        current = getattr(request, "current_app", None)
        self.site: AdminSite = next((site for site in all_sites if site.name == current), admin.site)

    @cached_property
    def sees_rules(self) -> bool:
        """Whether they may see rules, their versions and what is wrong with them."""
        return self._may_view(Rule)

    @cached_property
    def sees_usage(self) -> bool:
        """Whether they may see what was counted, and which clients were rejected."""
        return self._may_view(UsageBucket)

    @cached_property
    def sees_callers(self) -> bool:
        """Whether they may see callers, or act on them."""
        return self._may_view(TierAssignment) or self.may("unblock_caller") or self.may("grant_caller")

    @property
    def sees_engine(self) -> bool:
        """Whether they may see how Redis stands."""
        return self.sees_rules or self.sees_usage

    @cached_property
    def sees_overview(self) -> bool:
        """Whether the overview has something for them: a page that they may open, or something to do."""
        return self.sees_engine or self.sees_callers or self.may("switch_enforcement")

    @property
    def searches(self) -> bool:
        """Whether the search could lead them anywhere."""
        return self.sees_engine or self.sees_callers

    def may(self, permission: str) -> bool:
        """Return whether they have this permission of the app."""
        return bool(self.request.user.has_perm(f"django_ratelimiter.{permission}"))

    def url(self, name: str, *args: Any, **query: str) -> str:
        """Return the address of a page of this app: `url("rule_change", 7)`; "" where there is no such page."""
        try:
            address = reverse(f"admin:django_ratelimiter_{name}", args=args, current_app=self.site.name)
        except NoReverseMatch:
            return ""
        return f"{address}?{urlencode(query)}" if query else address

    def overview_url(self) -> str:
        """Return the address of the app's front page; "" where the site has none."""
        try:
            return reverse("admin:app_list", args=["django_ratelimiter"], current_app=self.site.name)
        except NoReverseMatch:
            return ""

    def caller_url(self, kind: str, value: str) -> str:
        """Return the address of a caller's page; "" for who may not see callers."""
        return self.url("caller", kind=kind, value=value) if self.sees_callers else ""

    def digest_url(self, digest: str, **query: str) -> str:
        """Return the address of the page of the caller that a digest stands for, likewise."""
        return self.url("caller", digest=digest, **query) if self.sees_callers else ""

    def _may_view(self, model: type[Any]) -> bool:
        if not self.site.is_registered(model):
            return False
        return bool(self.site.get_model_admin(model).has_view_permission(self.request))
