"""The base classes of our admins: pages besides Django's, each a row of a table, and lists that no address breaks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial, update_wrapper
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..usage.times import midnight, stored
from ..values.bounds import MAX_SEARCH


class Page(NamedTuple):
    """A page. Its view is called NAME_view, its template NAME.html, and its URL NAME, as in `Viewer.url`.

    may: the permission of this app that it needs, or a function of the admin and the request that checks it. own_name:
    of its URL, where Django expects another.
    """

    route: str
    view: Callable[..., HttpResponse]
    may: str | Callable[[Any, HttpRequest], bool]
    own_name: str = ""

    @property
    def name(self) -> str:
        """Return the name of its URL, without that of the app."""
        return self.own_name or self.view.__name__.removesuffix("_view")


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
    page_of: admin.ModelAdmin[Any], request: HttpRequest, name: str, title: str, context: dict[str, Any]
) -> TemplateResponse:
    """Return a page of this app by its name."""
    request.current_app = page_of.admin_site.name
    common = {**page_of.admin_site.each_context(request), "opts": page_of.opts, "title": title}
    return TemplateResponse(request, f"admin/django_ratelimiter/{name}.html", {**common, **context})


class WholeDays(forms.SplitDateTimeField):
    """A date and a time; a date alone is the midnight at which that day begins or, of an end, ends."""

    is_end = False

    def compress(self, data_list: Any) -> Any:
        if data_list and data_list[0] and data_list[1] is None:
            try:
                return stored(midnight(data_list[0] + timedelta(days=self.is_end)))
            except OverflowError:
                data_list = None, None
        return super().compress(data_list)


class NulSafeAdmin(admin.ModelAdmin):
    """An admin whose list treats a NUL byte or a very long text in its URL as an invalid filter: it shows all rows.

    PostgreSQL rejects the one, and SQLite the other, but only while the page is rendered.
    """

    formfield_overrides = {models.DateTimeField: {"form_class": WholeDays}}  # noqa: RUF012
    show_add_link = True  # django-unfold only shows the link beside a list with this

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        texts = (f"{name}{value}" for name, values in request.GET.lists() for value in values)
        if any("\0" in text or len(text) > MAX_SEARCH for text in texts):
            raise IncorrectLookupParameters
        try:
            return super().get_changelist_instance(request)
        except OverflowError as error:  # a number that is too large for SQLite, as the key of a tier
            raise IncorrectLookupParameters from error

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        """Return the field of a column. A date and a time get their own labels: Django labels neither."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if isinstance(field, WholeDays):
            field.is_end = db_field.name in ("expires_at", "ends_at")
            text = _("A date without a time counts as the whole day, in this time zone: %s.")
            field.help_text = f"{field.help_text} {text % timezone.get_current_timezone_name()}".strip()
            for widget, name in zip(field.widget.widgets, (_("Date"), _("Time")), strict=True):
                widget.attrs["aria-label"] = f"{capfirst(db_field.verbose_name)}: {name}"
        return field

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the history of a row. Without permission to view rows, the result does not reveal whether it exists."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)
