"""The checks that the tables of this app exist, once."""

from __future__ import annotations

import sys

from django.core import checks
from django.core.checks import CheckMessage

from ..rules.stored.tables import APP
from ..tenants import have_own
from .common import TAG, tables_are_missing


def check_tables(**_kwargs: object) -> list[CheckMessage]:
    """W016: the app is installed, but its tables do not exist."""
    if sys.argv[1:2] == ["migrate"] or not tables_are_missing():  # migrate creates them
        return []
    return [
        checks.Warning(
            "The tables of django_ratelimiter do not exist: only limits written in code apply, and no rule can be "
            "created in the admin.",
            hint="Run `manage.py migrate`. If all limits are in code, you can also take the app out of INSTALLED_APPS.",
            id=f"{TAG}.W016",
        )
    ]


def check_tenants(**_kwargs: object) -> list[CheckMessage]:
    """E011: each tenant of django-tenants would have its own tables, but a process has one set of rules."""
    if not have_own(APP):
        return []
    return [
        checks.Error(
            "django_ratelimiter is in TENANT_APPS: the rules of the tenant that a process serves first would apply to "
            "all tenants.",
            hint="Name it in SHARED_APPS only. Users of different tenants are counted apart.",
            id=f"{TAG}.E011",
        )
    ]
