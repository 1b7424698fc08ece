"""Tenants with a PostgreSQL schema each, as django-tenants makes them: users of two tenants have the same numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import connections, router
from django.db.models import Model

from .conf import django_setting
from .databases import pk_of


def have_own(app_label: str) -> bool:
    """Return whether each tenant has its own tables of this app: TENANT_APPS names it."""
    own = django_setting("TENANT_APPS", ())
    config: Any = apps.app_configs.get(app_label) if own else None
    return config is not None and (config.name in own or f"{type(config).__module__}.{type(config).__name__}" in own)


def have_own_users() -> bool:
    """Return whether each tenant has its own users."""
    return have_own(django_setting("AUTH_USER_MODEL").partition(".")[0])


def schema_of(request: Any = None) -> str:
    """Return the schema of the request's tenant; else the one that this thread's queries use."""
    tenant = getattr(request, "tenant", None)
    connection: Any = connections[router.db_for_read(get_user_model())] if tenant is None else tenant
    schema: str = connection.schema_name
    return schema


def user_key(pk: object) -> str:
    """Return what rules count a user by, from the primary key; see `key_of`."""
    return key_of(get_user_model(), pk)


def key_of(model: type[Model], pk: object) -> str:
    """Return what rules count a row by, from the primary key: behind the schema if tenants have their own rows."""
    return f"{schema_of()}:{pk}" if have_own(model._meta.app_label) else str(pk)


def own_pk(model: type[Model], key: str) -> str:
    """Return the primary key in such a text if it is of this tenant; else the text itself."""
    return key.removeprefix(f"{schema_of()}:") if have_own(model._meta.app_label) else key


def rows_of(model: type[Model], keys: Iterable[str]) -> Iterable[Any]:
    """Return the rows that rules count by these keys, see `key_of`, with at most one query; also by primary keys."""
    found = [pk for key in keys if (pk := pk_of(model, own_pk(model, key))) is not None]
    return model._default_manager.filter(pk__in=found) if found else ()
