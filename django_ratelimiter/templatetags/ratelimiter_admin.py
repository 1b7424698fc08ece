"""What the templates of the admin's pages ask for."""

from __future__ import annotations

from typing import Any

from django import template
from django.apps import apps
from django.template import Context

from ..conf import settings
from ..rules import cache

register = template.Library()

#: Set on a request whose page says already how the limiter stands.
SHOWN = "ratelimiter_notice_shown"


@register.inclusion_tag("admin/django_ratelimiter/stopped.html", takes_context=True)
def enforcement_banner(context: Context) -> dict[str, Any]:
    """A notice where rules are not enforced: an operator has stopped it, or the settings have."""
    request = context.get("request")
    if request is not None:
        setattr(request, SHOWN, True)
    return {"stopped": not cache.enforcement_enabled(), "disabled": not settings.ENABLED}


@register.inclusion_tag("admin/django_ratelimiter/stopped.html", takes_context=True)
def limiter_notice(context: Context) -> dict[str, Any]:
    """The same for pages that are not of this app, such as the admin's home page, and where Redis does not answer.

    For staff who may do anything in this app; once on a page.
    """
    request = context.get("request")
    if request is None or getattr(request, SHOWN, False) or not request.user.has_module_perms("django_ratelimiter"):
        return {}
    from ..admin.overview.health import read_health  # the admin may be absent, and this module is imported anyway
    from ..admin.overview.viewer import Viewer

    banner = enforcement_banner(context)
    decides = not (banner["stopped"] or banner["disabled"])
    degraded = decides and read_health().is_degraded
    return banner | {"degraded": degraded, "overview_url": Viewer(request).overview_url()}


@register.inclusion_tag("admin/django_ratelimiter/title.html", takes_context=True)
def title_without_theme(context: Context) -> dict[str, Any]:
    """The title of a page, where the theme of the admin shows none: django-unfold names the model instead."""
    return {"title": context.get("title")} if apps.is_installed("unfold") else {}


@register.inclusion_tag("admin/django_ratelimiter/overview.html", takes_context=True)
def overview(context: Context) -> dict[str, Any]:
    """How the limiter stands, what it rejects, and what needs attention."""
    from ..admin.overview.page import overview_context

    request = context.get("request")
    return {"csrf_token": context.get("csrf_token"), **overview_context(request)} if request is not None else {}
