"""References to users and groups, which may be in another database than the app's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any, Final

from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models, router, transaction
from django.db.models import CASCADE, SET_NULL, Q, QuerySet
from django.db.models.fields.related_descriptors import ForwardManyToOneDescriptor
from django.db.models.signals import post_delete
from django.utils import timezone

from .. import tenants
from ..conf import settings
from ..values.access import DIGEST_MARK
from ..values.digests import keyed_digest
from ..values.partitions import encode_partition

#: Maximum number of users that one query looks for.
MAX_KEYS: Final = 500


class _OfOtherDatabase(ForwardManyToOneDescriptor):  # type: ignore[type-arg]
    """Reads the user or group from its own database; `None` = it does not exist any more."""

    def get_queryset(self, **hints: Any) -> QuerySet[Any]:
        people: QuerySet[Any] = self.field.remote_field.model._base_manager.all()
        return people  # without the row as a hint, or its own database would be used

    def get_prefetch_querysets(self, instances: Any, querysets: Any = None) -> Any:
        people = querysets or [self.get_queryset()]
        return super().get_prefetch_querysets(
            instances, [each.using(router.db_for_read(each.model)) for each in people]
        )

    def get_object(self, instance: models.Model) -> Any:
        try:
            return super().get_object(instance)
        except ObjectDoesNotExist:
            return None

    def __set__(self, instance: models.Model, value: Any) -> None:
        if not isinstance(value, self.field.remote_field.model):
            super().__set__(instance, value)
            return
        # routers are not called: no query joins the two
        for own, theirs in self.field.related_fields:
            setattr(instance, own.attname, getattr(value, theirs.attname))
        self.field.set_cached_value(instance, value)


class PersonKey(models.ForeignKey):  # type: ignore[type-arg]
    """A foreign key to a user or group, without a database constraint."""

    forward_related_accessor_class = _OfOtherDatabase

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"db_constraint": False, **options})

    def validate(self, value: Any, model_instance: models.Model | None) -> None:
        """Reject a user or group that does not exist in its database."""
        models.Field.validate(self, value, model_instance)
        if value is None:
            return
        field: Any = self.remote_field.field_name
        if not self.remote_field.model._base_manager.filter(**{field: value}).exists():
            params = {"model": self.remote_field.model._meta.verbose_name, "pk": value, "field": field, "value": value}
            raise ValidationError(self.error_messages["invalid"], code="invalid", params=params)


def cascade(collector: Any, field: Any, rows: Any, using: str) -> None:
    """Delete rows that refer to a deleted user or group; in another database, `forget` does it."""
    if _is_here(field, using) and rows:
        CASCADE(collector, field, rows, using)


def set_null(collector: Any, field: Any, rows: Any, using: str) -> None:
    """Remove references to a deleted user; in another database, `forget` does it."""
    if _is_here(field, using):
        SET_NULL(collector, field, rows, using)


# Otherwise Django would search the rows in the users' database, which may lack the table.
cascade.lazy_sub_objs = set_null.lazy_sub_objs = True  # type: ignore[attr-defined]


def connect() -> None:
    """Connect `forget` to the deletion of users and groups."""
    people = get_user_model(), Group
    for model in apps.get_models():
        if model._meta.concrete_model in people:  # also of proxies, which send their own signals
            post_delete.connect(forget, sender=model, dispatch_uid="django_ratelimiter.forget")


def forget(sender: type[models.Model], instance: models.Model, using: str, **kwargs: Any) -> None:
    """Delete rows that name this user by value. If rows refer to this user or group from another database, those too,
    or the reference is removed.
    """
    if isinstance(instance, get_user_model()):
        key = tenants.user_key(instance.pk)
        for rows in rows_naming("user", key, encode_partition([("user", key)])):
            _delete_with(rows, using)
    # Including hidden relations: authors and creators have no name on the user's side (related_name="+").
    for relation in sender._meta.get_fields(include_hidden=True):
        field: Any = getattr(relation, "field", None)
        if not isinstance(field, PersonKey) or _is_here(field, using):
            continue
        database = router.db_for_write(field.model)
        rows = field.model._base_manager.using(database).filter(**{field.attname: instance.pk})
        gone = rows.delete if field.remote_field.on_delete is cascade else _letting_go(rows, field)
        transaction.on_commit(gone, using=using)


def rows_naming(kind: str, value: str | None, partition: str | None) -> Iterator[QuerySet[Any]]:
    """Yield the access entries of this kind and value or of this partition's digest, and the assignments of partitions
    with all parts of this one.
    """
    entries, assignments = (apps.get_model("django_ratelimiter", name) for name in ("AccessEntry", "TierAssignment"))
    yield written(entries).filter(kind=kind, value=value)
    if partition is None:
        return
    digests = [keyed_digest(key, partition) for key in (settings.HASH_KEY, *settings.HASH_KEY_FALLBACKS)]
    for rows, field in ((written(entries).filter(kind="digest"), "value"), (_by_digest(assignments), "partition")):
        yield rows.filter(reduce(or_, [Q(**{f"{field}__endswith": f":{digest}"}) for digest in digests]))
    parts = {*partition.split("|")}
    rows = written(assignments).filter(partition__contains=min(parts)).values_list("pk", "partition")
    yield written(assignments).filter(pk__in=[pk for pk, found in rows if parts <= {*found.split("|")}])


def _by_digest(assignments: Any) -> QuerySet[Any]:
    return written(assignments).filter(partition__startswith=DIGEST_MARK)


def missing_users() -> list[str]:
    """Return the values of users that access entries and assignments name, and that do not exist.

    Values of another model or tenant are left out.
    """
    users = get_user_model()
    entries, assignments = (apps.get_model("django_ratelimiter", name) for name in ("AccessEntry", "TierAssignment"))
    is_over = Q(expires_at__lte=timezone.now())
    named = {*entries._base_manager.filter(kind="user").exclude(is_over).values_list("value", flat=True)}
    rows = assignments._base_manager.exclude(ends_at__lte=timezone.now())
    named |= {str(pk) for pk in rows.exclude(user=None).values_list("user_id", flat=True).distinct()}
    for partition in rows.filter(partition__contains="user:").values_list("partition", flat=True):
        named |= {part.removeprefix("user:") for part in partition.split("|") if part.startswith("user:")}
    keys = {}
    for value in named:
        key = tenants.own_pk(value)
        with suppress(ValidationError):
            if not tenants.has_prefix(key):
                users._meta.pk.run_validators(pk := users._meta.pk.to_python(key))
                keys[pk] = value
    wanted = list(keys)
    for place in range(0, len(wanted), MAX_KEYS):
        for pk in users._base_manager.filter(pk__in=wanted[place : place + MAX_KEYS]).values_list("pk", flat=True):
            del keys[pk]
    return sorted(keys.values())


def written(model: Any) -> QuerySet[Any]:
    """Return all rows of this model in the database that is written."""
    rows: QuerySet[Any] = model._base_manager.using(router.db_for_write(model))
    return rows


def _delete_with(rows: QuerySet[Any], using: str) -> None:
    """Delete these rows; if they are in another database, once the transaction in this one is committed."""
    if rows.db == using:
        rows.delete()
    else:
        transaction.on_commit(rows.delete, using=using)


def _letting_go(rows: QuerySet[Any], field: Any) -> Any:
    return lambda: rows.update(**{field.name: None})


def _is_here(field: Any, using: str) -> bool:
    return router.db_for_write(field.model) == using
