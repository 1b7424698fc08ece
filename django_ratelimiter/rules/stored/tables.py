"""The models, imported when they are first used, and whether their tables exist.

The modules that entry points import take `models` from here. So an entry point can be imported before Django's registry
is ready, as the REST framework does with the classes in its settings, and in a project that has all its limits in code
and neither the app in INSTALLED_APPS nor the tables.
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
    """Imports `django_ratelimiter.models` when the first model is asked for."""

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

#: Alias and name of each table that was seen. A table that was seen is not looked for again.
_seen: set[tuple[str, str]] = set()
#: When to look again, by alias, where a table was missing. Monotonic seconds.
_next_check: dict[str, float] = {}
_logged = False


def exists(name: str, alias_for: Callable[[type[Model]], str]) -> bool:
    """Return whether the table of the model of this name exists; False where the app is not installed.

    alias_for: gives the database, as `router.db_for_read` does. It is asked once if it has the table, else once per
    RULES_MAX_AGE. A SELECT from a missing table would also end the project's own open transaction on PostgreSQL.
    Raises what the database raises if it is out of reach.
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
    """Return whether this database has the model's table. Raises what the database raises if it is out of reach."""
    key = using, model._meta.db_table
    if key not in _seen:
        _seen.update((using, found) for found in _names(using))
    return key in _seen


def were_missing(using: str) -> bool:
    """Return whether a table was missing in this database when it was last looked for."""
    return using in _next_check


def forget() -> None:
    """Look for the tables again when they are next needed."""
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
