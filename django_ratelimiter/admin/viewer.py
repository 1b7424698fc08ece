"""The user of a page, what they may see, names of rules and tiers, and the URLs of the pages that they may open."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Literal

from django.contrib import admin
from django.contrib.admin.sites import AdminSite, all_sites
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ..conf import settings
from ..models import Rule, Tier, UsageBucket
from ..values.digests import whole

#: The permission to see usage, and which callers were rejected.
VIEW_USAGE: Final = "django_ratelimiter.view_usage_report"


class Viewer:
    """A staff user on one admin site. The URL of a page that this site lacks is "".

    site: `None` = the one of the request's page.
    """

    def __init__(self, request: HttpRequest, site: AdminSite | None = None) -> None:
        self.request = request
        self.site: AdminSite = site or _site_of(request)

    @cached_property
    def sees_rules(self) -> bool:
        """True if they may see rules, their versions and their problems."""
        return self.sees(Rule)

    @cached_property
    def sees_usage(self) -> bool:
        """True if they may see usage, and which callers were rejected."""
        return self.sees(UsageBucket)

    @cached_property
    def sees_callers(self) -> bool:
        """True if they may see callers, or act on them."""
        return self.may("view_tierassignment") or self.may("unblock_caller")

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

    def search_context(self) -> dict[str, str]:
        """Return the context of the search field; empty for users who could find nothing."""
        if not self.searches:
            return {}
        text = _("%(who)s, API key, address, or the reference of a rejection")
        if self.sees_rules:
            text = _("%(who)s, API key, address, rule, path, or the reference of a rejection")
        who = _("Customer, user") if settings.CUSTOMER else _("User")
        return {"search_url": self.url("search"), "search_label": text % {"who": who}}

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

    def version_url(self, name: str, version: Any) -> str:
        """Return the URL of a page about a stored version."""
        return self.url(name, key_of(version))

    def overview_url(self) -> str:
        """Return the URL of the app's front page; "" if the site has none."""
        try:
            return reverse("admin:app_list", args=["django_ratelimiter"], current_app=self.site.name)
        except NoReverseMatch:
            return ""

    def caller_url(self, kind: str, value: str) -> str:
        """Return the URL of a caller's page; "" without the permission to see callers."""
        return self.url("caller", kind=kind, value=value) if self.sees_callers else ""

    def digest_url(self, alias: str, **query: str) -> str:
        """Return the URL of the caller's page for a digest or an alias; "" without the permission."""
        return self.url("caller", digest=whole(alias), **query) if self.sees_callers else ""

    def sees(self, model: type[Any]) -> bool:
        """Return whether they may see the rows of a model on this site."""
        if not self.site.is_registered(model):
            return False
        return bool(self.site.get_model_admin(model).has_view_permission(self.request))

    def row_url(self, row: Any) -> str:
        """Return the URL of a row's form, of any app; "" if they may not see it."""
        name = f"admin:{row._meta.app_label}_{row._meta.model_name}_change"
        return reverse(name, args=[row.pk], current_app=self.site.name) if self.sees(type(row)) else ""

    def form_url(self, act: Literal["add", "delete"], model: type[Any], *key: Any, **query: str) -> str:
        """Return the URL of the form that adds or deletes a row of this app; "" if they may not do that."""
        if not self.site.is_registered(model):
            return ""
        may = getattr(self.site.get_model_admin(model), f"has_{act}_permission")(self.request)
        return self.url(f"{model._meta.model_name}_{act}", *key, **query) if may else ""

    @cached_property
    def _rules(self) -> Mapping[str, tuple[str, int]]:
        """Name and key of each rule, by slug; read with one query, at the first use."""
        return {slug: (name, pk) for slug, name, pk in Rule.objects.order_by().values_list("slug", "name", "pk")}

    @cached_property
    def _tiers(self) -> Mapping[str, str]:
        return dict(Tier.objects.order_by().values_list("slug", "name"))

    def rule(self, slug: str) -> str:
        """Return the name of a rule; for a deleted one, or one in code, its slug."""
        return self._rules.get(slug, ("", 0))[0] or slug

    def tier(self, slug: str) -> str:
        """Return the name of a tier; for a deleted one its slug."""
        return self._tiers.get(slug, slug)

    def rule_url(self, slug: str) -> str:
        """Return the URL of a rule's form; "" without the permission to view rules, or if there is no form."""
        return self.url("rule_change", self._rules[slug][1]) if self.sees_rules and slug in self._rules else ""

    def explain_url(self, asked: Mapping[str, str]) -> str:
        """Return the URL of the page that explains this request; "" without the permission."""
        return self.url("explain", **asked) if self.sees_rules else ""

    def report_url(self, slug: str, **query: str) -> str:
        """Return the URL of the report on a rule's last hour."""
        return self.url("usage_rule", period="1h", rule=slug, **query)


def sees_callers(_page_of: Any, request: HttpRequest) -> bool:
    """Return whether this user may see callers, or act on them."""
    return Viewer(request).sees_callers


def key_of(version: Any) -> str:
    """Return a version's key in URLs: its number and epoch."""
    return f"{version.number}-{version.epoch}"


def _site_of(request: HttpRequest) -> AdminSite:
    """Return the site whose page this is: as Django's admin marks its views, else by name, as several may have one."""
    view = getattr(request.resolver_match, "func", None)
    marked = getattr(view, "admin_site", None) or getattr(getattr(view, "model_admin", None), "admin_site", None)
    current = getattr(request, "current_app", None)
    return marked or next((each for each in (admin.site, *all_sites) if each.name == current), admin.site)
