"""The check that the tables of this app exist."""

from __future__ import annotations

import sys

from django.core import checks
from django.core.checks import CheckMessage

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
