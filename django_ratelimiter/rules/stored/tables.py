"""The models, imported at their first use, and whether their tables exist.

The modules that entry points import take `models` from here. So an entry point can be imported before Django's app
registry is ready, as DRF does with the classes in its settings. It also works in a project that has all its limits
in code, without the app in INSTALLED_APPS and without the tables.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import Model

from ...conf import settings

__all__ = ["exists", "forget", "is_present", "models", "were_missing"]

logger = logging.getLogger("django_ratelimiter")

APP: Final = "django_ratelimiter"


class _Models:
    """Imports `django_ratelimiter.models` at the first use of a model."""

    def __getattr__(self, name: str) -> Any:
        if not apps.is_installed(APP):
            raise ImproperlyConfigured(
                f'Rules in the database need the app: add "{APP}" to INSTALLED_APPS, and run `manage.py migrate`.'
            )
        model = getattr(import_module(f"{APP}.models"), name)
        setattr(self, name, model)
        return model


if TYPE_CHECKING:
    from ... import models
else:
    models = _Models()

#: Alias and name of each existing table. These are not checked again.
_seen: set[tuple[str, str]] = set()
#: When to check again, by alias, after a table was missing. Monotonic seconds.
_next_check: dict[str, float] = {}
_logged = False


def exists(name: str, alias_for: Callable[[type[Model]], str]) -> bool:
    """Return whether the table of the model of this name exists; False if the app is not installed.

    alias_for: returns the database, as `router.db_for_read` does. An existing table is checked once, a missing one
    every RULES_MAX_AGE. A SELECT from a missing table would also abort the project's open transaction on PostgreSQL.
    Raises the database's exception if it is out of reach.
    """
    if not apps.is_installed(APP):
        return False
    model = getattr(models, name)
    using, table = alias_for(model), model._meta.db_table
    if (using, table) not in _seen and time.monotonic() < _next_check.get(using, 0.0):
        return False
    with suppress(ImproperlyConfigured):  # a project without a database
        if is_present(model, using):
            _next_check.pop(using, None)
            return True
    _next_check[using] = time.monotonic() + settings.RULES_MAX_AGE
    _log(using, table)
    return False


def is_present(model: type[Model], using: str) -> bool:
    """Return whether this database has the model's table. Raises its exception if it is out of reach."""
    key = using, model._meta.db_table
    if key not in _seen:
        _seen.update((using, found) for found in _names(using))
    return key in _seen


def were_missing(using: str) -> bool:
    """Return whether a table was missing in this database at the last check."""
    return using in _next_check


def forget() -> None:
    """Check for the tables again at their next use."""
    _seen.clear()
    _next_check.clear()


def _names(using: str) -> list[str]:
    return connections[using].introspection.table_names()


def _log(using: str, table: str) -> None:
    global _logged
    if not _logged:
        _logged = True
        logger.warning(
            "The database %r has no table %s, so only limits written in code apply. Run `manage.py migrate`.",
            using,
            table,
        )
