"""Template tags for pages of the project."""

from __future__ import annotations

from typing import Any

from django import template
from django.template import Context

from ..me import own_limits
from ..rules.formatting import rate_in_words, units, until_in_words

register: template.Library = template.Library()

register.filter("rate", rate_in_words)
register.filter("units", units)
register.filter("until", until_in_words)


@register.inclusion_tag("django_ratelimiter/my_limits.html", takes_context=True)
def my_limits(context: Context) -> dict[str, Any]:
    """Show what the caller has left of each of its limits."""
    request = getattr(context, "request", None) or context["request"]
    return {"own": own_limits(getattr(request, "_request", request))}
