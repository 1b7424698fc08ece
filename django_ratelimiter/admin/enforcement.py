"""The switch that stops all enforcement: a button above the list of rules, and a page that asks once more."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from ..models import RuleSetState
from ..rules import cache
from ..rules.stored.storage import primary
from .versioned import warn_if_unpublished

ADDRESS: Final = "django_ratelimiter_enforcement"
PERMISSION: Final = "django_ratelimiter.switch_enforcement"


class EnforcementSwitch(admin.ModelAdmin):
    """An admin with the switch. Who may use it has a permission of its own, whatever else they may do."""

    def get_urls(self) -> list[URLPattern]:
        switch = path("enforcement/", self.admin_site.admin_view(self.enforcement_view), name=ADDRESS)
        return [switch, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        context: dict[str, Any] = {"may_switch": request.user.has_perm(PERMISSION)}
        if context["may_switch"]:
            context["enforced"] = cache.enforcement_enabled()
        return super().changelist_view(request, context | (extra_context or {}))

    def enforcement_view(self, request: HttpRequest) -> HttpResponse:
        """Ask, and do it once confirmed. The form says which way, so that two who press the button do not undo it."""
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        if request.method == "POST":
            if request.POST.get("enforcement") not in ("on", "off"):
                raise BadRequest("enforcement: must be on or off.")
            self._switch_enforcement(request, request.POST["enforcement"] == "on")
            listed = "django_ratelimiter_rule_changelist" if self.has_view_permission(request) else "index"
            return HttpResponseRedirect(reverse(f"admin:{listed}"))
        enforced = cache.enforcement_enabled()
        title = _("Stop all enforcement?") if enforced else _("Resume enforcement?")
        context = {**self.admin_site.each_context(request), "opts": self.opts, "title": title, "enforced": enforced}
        return TemplateResponse(request, "admin/django_ratelimiter/enforcement.html", context)

    def _switch_enforcement(self, request: HttpRequest, enabled: bool) -> None:
        changed = cache.switch_enforcement(enabled, request.user)
        if enabled:
            text = _("Rules are enforced again.") if changed else _("Rules are enforced already.")
        else:
            text = _("All enforcement is stopped.") if changed else _("All enforcement is stopped already.")
        if changed:
            self.log_change(request, RuleSetState.objects.using(primary()).get(), text)
        messages.success(request, text)
        transaction.on_commit(partial(warn_if_unpublished, request), using=primary())
