"""How rows are named as text, also those of tenants with a PostgreSQL schema each, as django-tenants makes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
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


def row_key(row: Model) -> str:
    """Return the text that identifies a row of any model, such as "shop.ApiKey:7"."""
    return f"{row._meta.label}:{row.pk}"


def names_row(key: str) -> bool:
    """Return whether this is the `row_key` of a model that is installed, whether or not the row exists."""
    label, colon, _pk = key.partition(":")
    with suppress(LookupError, ValueError):
        return bool(colon) and apps.get_model(label)._meta.label == label
    return False


def rows_named(keys: Iterable[str]) -> dict[str, Any]:
    """Return the rows of these texts, see `row_key`, with one query for each model; other texts are left out."""
    pks: dict[str, list[str]] = defaultdict(list)
    for label, _, pk in (key.partition(":") for key in keys if names_row(key)):
        pks[label].append(pk)
    found = [rows_of(apps.get_model(label), texts) for label, texts in pks.items()]
    return {row_key(row): row for rows in found for row in rows}
