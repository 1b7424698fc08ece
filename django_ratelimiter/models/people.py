"""References to users and groups, and rows that name a user by value, which may be in another database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial, reduce
from operator import or_
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist
from django.db import models, router, transaction
from django.db.models import CASCADE, SET_NULL, Q, QuerySet
from django.db.models.signals import post_delete

from .. import tenants
from ..conf import settings
from ..customers import customer_model
from ..values.access import DIGEST_MARK
from ..values.digests import keyed_digest
from ..values.partitions import encode_partition


def referred(row: models.Model, name: str) -> Any:
    """Return the user or group that a row refers to; `None` = nobody, or it was deleted by SQL."""
    with suppress(ObjectDoesNotExist):
        return getattr(row, name)
    return None


def cascade(collector: Any, field: Any, rows: Any, using: str) -> None:
    """Delete rows that refer to a deleted user or group."""
    if router.db_for_write(field.model) == using and rows:
        CASCADE(collector, field, rows, using)


def set_null(collector: Any, field: Any, rows: Any, using: str) -> None:
    """Remove references to a deleted user."""
    if router.db_for_write(field.model) == using:
        SET_NULL(collector, field, rows, using)


# Otherwise Django would search the rows in the users' database, which may lack the table.
cascade.lazy_sub_objs = set_null.lazy_sub_objs = True  # type: ignore[attr-defined]


def connect() -> None:
    """Connect `forget` to the deletion of users and customers."""
    named: dict[str, Any] = {"user": get_user_model()}
    with suppress(ImproperlyConfigured):  # a check names it
        named["customer"] = customer_model()
    for kind, model in named.items():
        about, uid = partial(forget, kind), f"django_ratelimiter.forget.{kind}"
        for each in apps.get_models() if model else ():
            if each._meta.concrete_model is model._meta.concrete_model:  # also proxies, which send their own signals
                post_delete.connect(about, sender=each, weak=False, dispatch_uid=uid)


def forget(kind: str, instance: models.Model, using: str, **signal: Any) -> None:
    """Delete rows that name this user or customer by value; in another database, once the deletion is committed."""
    key = tenants.key_of(type(instance), instance.pk)
    for rows in rows_naming(kind, key, encode_partition([(kind, key)])):
        if rows.db == using:
            rows.delete()
        else:
            transaction.on_commit(rows.delete, using=using)


def rows_naming(kind: str, value: str | None, partition: str | None) -> Iterator[QuerySet[Any]]:
    """Yield the access entries of this kind and value or of this partition's digest, and the assignments of partitions
    with all parts of this one.
    """
    entries, assignments = (apps.get_model("django_ratelimiter", name) for name in ("AccessEntry", "TierAssignment"))
    yield written(entries).filter(kind=kind, value=value)
    if partition is None:
        return
    digests = [keyed_digest(key, partition) for key in (settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS)]
    by_digest = written(entries).filter(kind="digest"), written(assignments).filter(partition__startswith=DIGEST_MARK)
    for rows, field in zip(by_digest, ("value", "partition"), strict=True):
        yield rows.filter(reduce(or_, [Q(**{f"{field}__endswith": f":{digest}"}) for digest in digests]))
    parts = {*partition.split("|")}
    rows = written(assignments).filter(partition__contains=min(parts)).values_list("pk", "partition")
    yield written(assignments).filter(pk__in=[pk for pk, found in rows if parts <= {*found.split("|")}])


def written(model: Any) -> QuerySet[Any]:
    """Return all rows of this model in the database that is written."""
    rows: QuerySet[Any] = model._base_manager.using(router.db_for_write(model))
    return rows
