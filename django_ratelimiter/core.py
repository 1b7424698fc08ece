"""The names of django-ratelimit's module `core`, for code that changes only the name of the package."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from .decorators import aget_usage, ais_ratelimited, get_usage, is_ratelimited
from .decorators.arguments import address_of, django_request, get_header
from .decorators.arguments import parse_rate as _split_rate  # noqa: F401  # projects import private names, too
from .identity import identify

__all__ = ["aget_usage", "ais_ratelimited", "get_header", "get_usage", "is_ratelimited", "user_or_ip"]


def _get_ip(request: Any) -> str:
    """Return the caller's address, or the first one of its network. Raises ImproperlyConfigured if it is not known."""
    address = address_of(request, identify(django_request(request)))
    if address is None:
        raise ImproperlyConfigured(
            "The caller's address is not known. Behind a proxy, set RATELIMITER['TRUSTED_PROXIES']."
        )
    return address.partition("/")[0]


def user_or_ip(request: Any) -> str:
    """Return the primary key of the authenticated user, else the caller's address."""
    return str(request.user.pk) if request.user.is_authenticated else _get_ip(request)
