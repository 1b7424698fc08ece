"""The page that stops all enforcement, or resumes it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import BadRequest
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import RuleSetState
from ..rules import cache
from ..rules.stored.storage import primary
from .pages import show
from .versioned import ReasonField, warn_if_unpublished
from .viewer import Viewer

PERMISSION: Final = "switch_enforcement"


class SwitchForm(forms.Form):
    """The reason."""

    reason = ReasonField(
        required=False, help_text=gettext_lazy("Why you stop or resume enforcement. The history shows it.")
    )


def enforcement_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Ask, and do it once confirmed. The form has the direction, so that two operators do not undo each other."""
    form, enforced = SwitchForm(), cache.enforcement_enabled()
    if request.method == "POST":
        if request.POST.get("enforcement") not in ("on", "off"):
            raise BadRequest("enforcement: must be on or off.")
        form, enforced = SwitchForm(request.POST), request.POST["enforcement"] == "off"
        if form.is_valid():
            _switch(page_of, request, not enforced, form.cleaned_data["reason"])
            viewer = Viewer(request)  # without the permission to view rules, there is only the app's front page
            return HttpResponseRedirect(viewer.url("rule_changelist") if viewer.sees_rules else viewer.overview_url())
    title = _("Stop all enforcement?") if enforced else _("Resume enforcement?")
    return show(page_of, request, "enforcement", title, {"enforced": enforced, "form": form})


def _switch(page_of: Any, request: HttpRequest, enabled: bool, reason: str) -> None:
    changed = cache.switch_enforcement(enabled, request.user, reason)
    if enabled:
        text = _("Rules are enforced again.") if changed else _("Rules are enforced already.")
    else:
        text = _("All enforcement is stopped.") if changed else _("All enforcement is stopped already.")
    if changed:
        logged = f"{text} {_('Reason: %(reason)s') % {'reason': reason}}" if reason else text
        page_of.log_change(request, RuleSetState.objects.using(primary()).get(), logged)
    if not cache.last_publish_failed():
        messages.success(request, text)
    transaction.on_commit(partial(warn_if_unpublished, request), using=primary())
