"""The page behind the overview's search field."""

from __future__ import annotations

from typing import Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters

from ..viewer import Viewer
from .search import find

ADDRESS: Final = "django_ratelimiter_search"


def search_context(viewer: Viewer) -> dict[str, str]:
    """Return the context of the search field; empty for users who could find nothing."""
    if not viewer.searches:
        return {}
    if viewer.sees_rules:
        text = _("User, API key, address, rule, path, or the reference of a rejection")
    else:
        text = _("User, API key, address, or the reference of a rejection")
    return {"search_url": viewer.url("search"), "search_label": text}


class OverviewSearch(admin.ModelAdmin):
    """An admin with the search. The text is sent in the body: it may be an API key, and URLs are logged."""

    def get_urls(self) -> list[URLPattern]:
        return [path("search/", self.admin_site.admin_view(self.search_view), name=ADDRESS), *super().get_urls()]

    @method_decorator(sensitive_post_parameters("q"))
    def search_view(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the only result, or list several."""
        request.current_app = self.admin_site.name
        viewer = Viewer(request)
        if not viewer.searches:
            raise PermissionDenied
        text = request.POST.get("q", "")
        matches = find(text, viewer)
        if len(matches) == 1:
            return HttpResponseRedirect(matches[0].url)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Search"),
            "matches": matches,
            "searched": bool(text.strip()),
            **search_context(viewer),
        }
        return TemplateResponse(request, "admin/django_ratelimiter/search.html", context)
