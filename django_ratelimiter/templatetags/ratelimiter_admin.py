"""What the templates of the admin's pages ask for."""

from __future__ import annotations

from typing import Any

from django import template

from ..conf import settings
from ..rules import cache

register = template.Library()


@register.inclusion_tag("admin/django_ratelimiter/stopped.html")
def enforcement_banner() -> dict[str, Any]:
    """A notice where rules are not enforced: an operator has stopped it, or the settings have."""
    return {"stopped": not cache.enforcement_enabled(), "disabled": not settings.ENABLED}
