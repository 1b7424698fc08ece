"""What a project puts on its own admin of customers."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ...customers import value_of
from ...inspection.caller import caller_of
from ...inspection.caller_report import report_of, state_in_words
from ..viewer import Viewer
from .rows import bars_of


class CustomerAdminMixin(admin.ModelAdmin):
    """Shows on the page of a customer how much of its limits is used, and leads to ours, for who may see callers."""

    class Media:
        css = {"all": ["django_ratelimiter/control.css"]}  # noqa: RUF012

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = super().get_readonly_fields(request, obj)
        may_see = obj is not None and Viewer(request, self.admin_site).sees_callers
        return (*fields, "rate_limits") if may_see else fields

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add a part of the page if the project lists its fields."""
        found, name = super().get_fieldsets(request, obj), "rate_limits"
        is_missing = name in self.get_readonly_fields(request, obj) and name not in flatten_fieldsets(found)
        return (*found, (capfirst(_("rate limits")), {"fields": (name,)})) if is_missing else found

    @admin.display(description=_("used"))
    def rate_limits(self, customer: Any) -> str:
        """Return the state, the bars and the link as HTML."""
        caller = caller_of("customer", value_of(customer))
        url = Viewer(HttpRequest(), self.admin_site).url("caller", kind=caller.kind, value=caller.value)
        report = report_of(caller)
        context = {"report": report, "state": state_in_words(report), "bars": bars_of(report.counters), "url": url}
        return render_to_string("admin/django_ratelimiter/customer_bars.html", context)
