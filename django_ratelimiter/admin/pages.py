"""Pages of an admin besides Django's: each is a row of a table, and a function of the admin and the request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path


class Page(NamedTuple):
    """A page. name: as in `Viewer.url`, without the name of the app.

    may: the permission of this app that it needs, or a function of the admin and the request that checks it.
    """

    route: str
    name: str
    view: Callable[..., HttpResponse]
    may: str | Callable[[Any, HttpRequest], bool]


class PagesAdmin(admin.ModelAdmin):
    """An admin with pages of its own. has_forms: it has Django's pages, too."""

    pages: tuple[Page, ...] = ()
    has_forms = True

    def get_urls(self) -> list[URLPattern]:
        return [*map(self._pattern, self.pages), *(super().get_urls() if self.has_forms else ())]

    def _pattern(self, page: Page) -> URLPattern:
        view = update_wrapper(partial(self._open, page), page.view)  # with what decorators have noted on it
        checked = self.admin_site.admin_view(view)
        checked.__dict__["model_admin"] = self  # as Django marks its own pages
        return path(page.route, checked, name=f"django_ratelimiter_{page.name}")

    def _open(self, page: Page, request: HttpRequest, **captured: Any) -> HttpResponse:
        """Return the page. Raises PermissionDenied."""
        request.current_app = self.admin_site.name
        if isinstance(page.may, str):
            may = request.user.has_perm(f"django_ratelimiter.{page.may}")
        else:
            may = page.may(self, request)
        if not may:
            raise PermissionDenied
        return page.view(self, request, **captured)


def show(
    page_of: admin.ModelAdmin[Any], request: HttpRequest, template: str, title: str, context: dict[str, Any]
) -> TemplateResponse:
    """Return a page of this app's templates."""
    request.current_app = page_of.admin_site.name
    common = {**page_of.admin_site.each_context(request), "opts": page_of.opts, "title": title}
    return TemplateResponse(request, f"admin/django_ratelimiter/{template}.html", {**common, **context})
