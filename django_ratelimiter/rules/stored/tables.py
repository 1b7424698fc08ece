"""The models, imported at their first use, and whether their tables exist.

The modules that entry points import take `models` from here. So an entry point can be imported before Django's app
registry is ready, as DRF does with the classes in its settings. It also works in a project that has all its limits
in code, without the app in INSTALLED_APPS and without the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router, transaction
from django.db.models import Model

from ...logs import logger
from ..reading import turns
from ..ttl_cache import NoAnswer

__all__ = ["command_for", "exists", "forget", "is_present", "models", "must_exist"]

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
_logged = False


def exists(name: str, alias_for: Callable[[type[Model]], str]) -> bool:
    """Return whether the table of the model of this name exists; False if the app is not installed.

    alias_for: returns the database, as `router.db_for_read` does. Only an existing table is remembered. Raises the
    database's exception if it is out of reach.
    """
    if not apps.is_installed(APP):
        return False
    model = getattr(models, name)
    using = alias_for(model)
    with suppress(ImproperlyConfigured):  # a project without a database
        if is_present(model, using):
            return True
    _log(using, model._meta.db_table)
    return False


def must_exist(*names: str) -> None:
    """Raise NoAnswer unless these models' tables exist where they are read; at once while the rules' database hangs."""
    if (turns.is_hanging and _hangs_still()) or not all(exists(name, router.db_for_read) for name in names):
        raise NoAnswer


def _hangs_still() -> bool:
    """Return whether the database of the rules hangs. It is asked again now and then."""
    using = router.db_for_write(models.RuleSetVersion)
    ask = partial(_has_table, models.RuleSetVersion, using)
    return turns.take(using, ask, lambda: None, bool, apart=True) is None


def is_present(model: type[Model], using: str) -> bool:
    """Return whether this database has the model's table. Raises its exception if it is out of reach."""
    key = using, model._meta.db_table
    if key not in _seen and _has_table(model, using):
        _seen.add(key)
    return key in _seen


def forget() -> None:
    """Check for the tables again at their next use."""
    _seen.clear()


def _has_table(model: type[Model], using: str) -> bool:
    """Return whether the table answers. A list of tables would only have those of one schema."""
    # In the project's own transaction, which PostgreSQL would end. Otherwise none: SQLite may lock the database for it.
    is_alone = connections[using].get_autocommit()
    try:
        with nullcontext() if is_alone else transaction.atomic(using=using):
            model._base_manager.using(using).exists()
    except Error:
        if model._meta.db_table in connections[using].introspection.table_names():
            raise
        return False
    return True


def command_for(using: str) -> str:
    """Return the command that creates the tables in this database."""
    return "manage.py migrate" if using == DEFAULT_DB_ALIAS else f"manage.py migrate --database {using}"


def _log(using: str, table: str) -> None:
    global _logged
    if not _logged:
        _logged = True
        problem = "The database %r has no table %s, so only limits written in code apply. Run `%s`."
        logger.warning(problem, using, table, command_for(using))
