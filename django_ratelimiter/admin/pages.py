"""The base class of the admins that have pages besides Django's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path


class PagesAdmin(admin.ModelAdmin):
    """An admin with pages of its own, each with its permission."""

    def page_path(
        self, route: str, view: Callable[..., HttpResponse], name: str, may: str | Callable[[HttpRequest], bool]
    ) -> URLPattern:
        """Return the pattern of a page. name: as in `Viewer.url`, without the name of the app.

        may: the permission that it needs, or a function that checks it.
        """

        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            request.current_app = self.admin_site.name
            if not (request.user.has_perm(may) if isinstance(may, str) else may(request)):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        page = self.admin_site.admin_view(checked)
        page.__dict__["model_admin"] = self  # as Django marks its own pages
        return path(route, page, name=f"django_ratelimiter_{name}")

    def page(self, request: HttpRequest, template: str, title: str, context: dict[str, Any]) -> TemplateResponse:
        """Return a page of this app's templates."""
        request.current_app = self.admin_site.name
        common = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
        return TemplateResponse(request, f"admin/django_ratelimiter/{template}.html", {**common, **context})
