"""The switch that stops all enforcement: a button above the list of rules, and a confirmation page."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import BadRequest
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import RuleSetState
from ..rules import cache
from ..rules.stored.storage import primary
from .pages import PagesAdmin
from .reasons import ReasonField
from .versioned import warn_if_unpublished
from .viewer import Viewer

PERMISSION: Final = "django_ratelimiter.switch_enforcement"
HOME_TEMPLATE: Final = "admin/django_ratelimiter/index.html"


class SwitchForm(forms.Form):
    """The reason."""

    reason = ReasonField(
        required=False, help_text=gettext_lazy("Why you stop or resume enforcement. The history shows it.")
    )


class EnforcementSwitch(PagesAdmin):
    """An admin with the switch. The switch has its own permission.

    While enforcement is stopped, the home page of the admin site shows it. A template "admin/index.html" of ours would
    only be found if the app is listed before django.contrib.admin; the site's own choice of a template is kept.
    """

    def __init__(self, model: type[Model], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        if admin_site.index_template is None:
            admin_site.index_template = HOME_TEMPLATE

    def get_urls(self) -> list[URLPattern]:
        return [self.page_path("enforcement/", self.enforcement_view, "enforcement", PERMISSION), *super().get_urls()]

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Show the app in the admin to users who can use the switch, but cannot view rules."""
        return {**super().get_model_perms(request), "switch": request.user.has_perm(PERMISSION)}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        context: dict[str, Any] = {"may_switch": request.user.has_perm(PERMISSION)}
        if context["may_switch"]:
            context["enforced"] = cache.enforcement_enabled()
        return super().changelist_view(request, context | (extra_context or {}))

    def enforcement_view(self, request: HttpRequest) -> HttpResponse:
        """Ask, and do it once confirmed. The form has the direction, so that two operators do not undo each other."""
        form, enforced = SwitchForm(), cache.enforcement_enabled()
        if request.method == "POST":
            if request.POST.get("enforcement") not in ("on", "off"):
                raise BadRequest("enforcement: must be on or off.")
            form, enforced = SwitchForm(request.POST), request.POST["enforcement"] == "off"
            if form.is_valid():
                self._switch_enforcement(request, not enforced, form.cleaned_data["reason"])
                viewer = Viewer(request)  # without the permission to view rules, there is only the app's front page
                return HttpResponseRedirect(
                    viewer.url("rule_changelist") if viewer.sees_rules else viewer.overview_url()
                )
        title = _("Stop all enforcement?") if enforced else _("Resume enforcement?")
        return self.page(request, "enforcement", title, {"enforced": enforced, "form": form})

    def _switch_enforcement(self, request: HttpRequest, enabled: bool, reason: str) -> None:
        changed = cache.switch_enforcement(enabled, request.user, reason)
        if enabled:
            text = _("Rules are enforced again.") if changed else _("Rules are enforced already.")
        else:
            text = _("All enforcement is stopped.") if changed else _("All enforcement is stopped already.")
        if changed:
            logged = f"{text} {_('Reason: %(reason)s') % {'reason': reason}}" if reason else text
            self.log_change(request, RuleSetState.objects.using(primary()).get(), logged)
        if not cache.last_publish_failed():
            messages.success(request, text)
        transaction.on_commit(partial(warn_if_unpublished, request), using=primary())
