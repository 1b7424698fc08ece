"""Template tags of the admin's pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.apps import apps
from django.template import Context
from django.utils.translation import gettext as _

from ..conf import settings
from ..rules import cache
from ..rules.formatting import moment_in_words, units
from ..usage.times import aware

register: template.Library = template.Library()

register.filter("units", units)

#: Set on a request whose page already shows the state of the limiter.
SHOWN = "ratelimiter_notice_shown"


@register.filter
def moment(value: datetime) -> str:
    """Return a time of the database, or an aware one, as text."""
    return moment_in_words(aware(value))


@register.filter
def when_and_who(version: Any) -> str:
    """Return when a version was saved, and by whom."""
    when = moment(version.created_at)
    return _("%(when)s, by %(who)s") % {"when": when, "who": version.author.get_username()} if version.author else when


@register.inclusion_tag("admin/django_ratelimiter/stopped.html", takes_context=True)
def enforcement_banner(context: Context) -> dict[str, Any]:
    """Show a notice if rules are not enforced: stopped by an operator, or by the settings."""
    request = context.get("request")
    if request is not None:
        setattr(request, SHOWN, True)
    return {"stopped": not cache.enforcement_enabled(), "disabled": not settings.ENABLED}


@register.inclusion_tag("admin/django_ratelimiter/stopped.html", takes_context=True)
def limiter_notice(context: Context) -> dict[str, Any]:
    """Show such a notice on pages of other apps, such as the admin's home page, and if Redis is out of reach.

    For staff with any permission in this app; once per page.
    """
    request = context.get("request")
    if request is None or getattr(request, SHOWN, False) or not request.user.has_module_perms("django_ratelimiter"):
        return {}
    from ..admin.overview.state import read_health  # the admin may be missing, but this module is imported anyway
    from ..admin.viewer import Viewer

    banner = enforcement_banner(context)
    decides = not (banner["stopped"] or banner["disabled"])
    degraded = decides and read_health().is_degraded
    return banner | {"degraded": degraded, "overview_url": Viewer(request).overview_url()}


@register.inclusion_tag("admin/django_ratelimiter/title.html", takes_context=True)
def title_without_theme(context: Context) -> dict[str, Any]:
    """Show the title of a page if the admin's theme does not: django-unfold shows the model's name instead."""
    return {"title": context.get("title")} if apps.is_installed("unfold") else {}


@register.inclusion_tag("admin/django_ratelimiter/overview.html", takes_context=True)
def overview(context: Context) -> dict[str, Any]:
    """Show the state of the limiter, what it rejects, and what needs attention."""
    from ..admin.overview.page import overview_context

    request = context.get("request")
    if request is None:
        return {}
    own = {"csrf_token": context.get("csrf_token"), "notice_shown": getattr(request, SHOWN, False)}
    return own | overview_context(request)
