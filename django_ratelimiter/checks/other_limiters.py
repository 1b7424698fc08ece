"""Checks for remains of other limiters."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from django.core import checks
from django.core.checks import CheckMessage

from ..conf import django_setting
from .common import TAG

#: Settings of django-ratelimit that have no effect here, with the ones to use instead.
_WITHOUT_MEANING: Final = {
    "RATELIMIT_VIEW": "RATELIMITER['RESPONSE']",
    "RATELIMIT_USE_CACHE": "RATELIMITER['CACHE_ALIAS']",
    "RATELIMIT_CACHE_PREFIX": "RATELIMITER['NAMESPACE']",
    "RATELIMIT_HASH_ALGORITHM": "RATELIMITER['HASH_KEY']",
}


def check_settings_of_django_ratelimit(**_kwargs: object) -> list[CheckMessage]:
    """W010: a setting of django-ratelimit is left, but that is no longer installed, and it has no effect here."""
    if find_spec("django_ratelimit") is not None:
        return []
    return [
        checks.Warning(
            f"{name} is a setting of django-ratelimit, and has no effect here.",
            hint=f"Remove it. See instead: {instead}.",
            id=f"{TAG}.W010",
        )
        for name, instead in _WITHOUT_MEANING.items()
        if django_setting(name) is not None
    ]
