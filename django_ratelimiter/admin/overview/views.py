"""The page behind the overview's search field."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters

from ..pages import show
from ..viewer import Viewer
from .search import find, suggest


def search_context(viewer: Viewer) -> dict[str, str]:
    """Return the context of the search field; empty for users who could find nothing."""
    if not viewer.searches:
        return {}
    if viewer.sees_rules:
        text = _("User, API key, address, rule, path, or the reference of a rejection")
    else:
        text = _("User, API key, address, or the reference of a rejection")
    return {"search_url": viewer.url("search"), "search_label": text}


def may_search(_page_of: Any, request: HttpRequest) -> bool:
    """Return whether the search could find anything for this user."""
    return Viewer(request).searches


@method_decorator(sensitive_post_parameters("q"))
def search_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Redirect to the only result, or list several; only suggestions while the text is typed.

    The text is sent in the body: it may be an API key, and URLs are logged.
    """
    viewer = Viewer(request)
    text = request.POST.get("q", "")
    if "suggest" in request.POST:
        found = {"matches": suggest(text, viewer)}
        return TemplateResponse(request, "admin/django_ratelimiter/search_matches.html", found)
    matches = find(text, viewer)
    if len(matches) == 1:
        return HttpResponseRedirect(matches[0].url)
    context = {"matches": matches, "searched": bool(text.strip()), **search_context(viewer)}
    return show(page_of, request, "search", _("Search"), context)
